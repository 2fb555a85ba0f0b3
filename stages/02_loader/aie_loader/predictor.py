"""A model that answers at once, without generating: an encoder, a classifier, an image model, a graph from a file.

    folder with graph.json          the graph as it is written there, over the weights beside it
    folder with config.json         BERT, RoBERTa, XLM-RoBERTa, DistilBERT; ResNet
    GGUF file                       BERT
    weights of torchvision          ResNet, told by the tensors' names
    other weights, and input_shape  a sequential network, as `build_graph` makes it

The counterpart for models that generate text is `load_model`. Running the graph is stage 4's.
"""

import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from aie_loader import predictor_parts as parts_of
from aie_loader.architectures import architecture_of_gguf, architecture_of_json
from aie_loader.architectures.encoders import ENCODERS, EncoderConfig
from aie_loader.architectures.labels import Problem
from aie_loader.architectures.vision import ImageInput, ResNetConfig, is_torchvision_resnet
from aie_loader.errors import MissingFileError, UnknownArchitectureError, UnsupportedModelError
from aie_loader.formats import (
    STRICT,
    Checkpoint,
    CheckpointFormat,
    Leniency,
    open_checkpoint,
    read_gguf_header,
    read_json_object,
)
from aie_loader.formats.source import SourceFile, path_kind
from aie_loader.graph import Graph
from aie_loader.graph_file import GRAPH_FILE
from aie_loader.predictor_parts import Output, Parts
from aie_loader.repository import served_name
from aie_loader.text.batch import EncodedBatch
from aie_loader.text.tokenizer import Tokenizer
from aie_tensor import InvalidInputError

__all__ = ["Output", "Predictor", "is_predictor", "load_predictor"]

_RESNET = "resnet"
_GGUF = "bert"
_GGUF_STRING = 8  # the type of the value
_PEEKED_BYTES = 4096
_PHASES = ("configuration", "open", "graph", "tokenizer")


@dataclass(slots=True)
class Predictor:
    """A loaded predictor. Weights are views of mapped files: they cost memory only as far as they are touched.

    output says what the graph's (first) output is:
        token_states   [T, C]       a vector per token
        embedding      [S, C]       a vector per text (of a ResNet without classifier [B, C], per image)
        logits         [S, labels]  a number per label and text (of a vector's classifier [B, labels])
        token_logits   [T, labels]  a number per label and token
        image_logits   [B, labels]  a number per label and image
        values                      something else: see the graph's shapes
    """

    name: str
    path: Path
    format: CheckpointFormat
    architecture: str  # "bert", …, "resnet", "graph" (from a file), "sequential"
    config: EncoderConfig | ResNetConfig | None
    graph: Graph  # unfused; `aie_loader.fuse` makes it faster
    output: Output
    tokenizer: Tokenizer | None  # of models that read text
    max_length: int | None  # longest text in tokens, special ones included; None: no text, or no limit
    labels: tuple[str, ...]  # in the order of the logits; empty where they have no names
    problem: Problem | None  # how logits are to be read; None where the output is not logits, or nobody says
    image: ImageInput | None  # of models that look at images and say what they want
    metadata: Mapping[str, object]  # GGUF keys, or the contents of config.json, empty where there is none
    load_phases: Mapping[str, float]  # seconds: configuration, opening the file, graph, tokenizer
    weight_bytes: int  # as stored in the file
    checkpoint: Checkpoint = field(repr=False)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the mapped files."""
        return self.checkpoint.mapped_bytes

    @property
    def load_seconds(self) -> float:
        """From the path to the graph."""
        return sum(self.load_phases.values())

    def encode(self, texts: Sequence[str | tuple[str, str]]) -> EncodedBatch:
        """Ids of texts, or of pairs of texts, as the model wants them: special tokens around, `max_length` at most.

        InvalidInputError for a model that does not read text, and for a text of which nothing is left.
        """
        if self.tokenizer is None:
            raise InvalidInputError(f"{self.name} does not read text")
        batch = self.tokenizer.encode_batch(texts, max_length=self.max_length)
        if 0 in batch.lengths:
            index = batch.lengths.index(0)
            raise InvalidInputError(f"text {index} has no tokens, and {self.name} puts none around it")
        return batch

    def close(self) -> None:
        """Forget the weights. Matrices that somebody still holds stay valid; the mapping ends with the last of them."""
        self.checkpoint.close()
        self.graph = Graph(self.graph.inputs, self.graph.nodes, self.graph.outputs)


def load_predictor(
    path: Path | str,
    *,
    head: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    lenient: Collection[Leniency] = STRICT,
) -> Predictor:
    """Load a model folder, or a file of weights.

    head: of an encoder, instead of the one that its files name: states, mean, cls, max, pooler, sequence, token.
    input_shape: of one item, such as (3, 224, 224), where no file says it.
    lenient: differences from the formats' rules to let through; the errors say which would help.

    Raises ModelFileError leaves for files that are not what they claim, UnsupportedModelError for features that are
    missing here, UnknownArchitectureError for other kinds of models, TokenizerError where the tokenizer of a model that
    reads text is missing or broken; each names file and thing.
    """
    laps = [time.perf_counter()]
    path = Path(path)
    folder = path if path_kind(path) == "folder" else path.parent
    in_gguf = path.suffix.lower() == ".gguf"
    by_graph_file = not in_gguf and path_kind(folder / GRAPH_FILE) == "file"
    metadata: Mapping[str, object] = {}
    kind = None
    if not in_gguf and not by_graph_file and path_kind(folder / "config.json") == "file":
        metadata = read_json_object(folder / "config.json")
        kind = _known(metadata, str(folder / "config.json"))
    if head is not None and kind not in ENCODERS and not in_gguf:
        raise InvalidInputError(f"{path} is no encoder, so it has no choice of heads", param="head")
    laps.append(time.perf_counter())
    checkpoint = open_checkpoint(folder if path.name == GRAPH_FILE else path, lenient=lenient)
    laps.append(time.perf_counter())
    if in_gguf:
        metadata = checkpoint.metadata
        _check_gguf(metadata, str(path))
        parts = parts_of.gguf_encoder(metadata, checkpoint.tensors, str(path), head)
    elif kind is None:
        parts = _undescribed(folder, checkpoint, by_graph_file, input_shape)
    elif kind == _RESNET:
        parts = parts_of.resnet(folder, metadata, checkpoint.tensors, str(path), input_shape)
    else:
        parts = parts_of.encoder(kind, folder, metadata, checkpoint.tensors, str(path), head)
    laps.append(time.perf_counter())
    tokenizer, max_length = parts_of.tokenizer_of(folder, parts, metadata if in_gguf else None)
    laps.append(time.perf_counter())
    return Predictor(
        name=served_name(path),
        path=path,
        format=checkpoint.format,
        architecture=parts.architecture,
        config=parts.config,
        graph=parts.graph,
        output=parts.output,
        tokenizer=tokenizer,
        max_length=max_length,
        labels=parts.labels,
        problem=parts.problem,
        image=parts.image,
        metadata=metadata,
        load_phases=dict(zip(_PHASES, (b - a for a, b in pairwise(laps)), strict=True)),
        weight_bytes=sum(matrix.nbytes for matrix in parts.graph.weights.values()),
        checkpoint=checkpoint,
    )


def is_predictor(path: Path | str, *, lenient: Collection[Leniency] = STRICT) -> bool:
    """Whether `load_predictor` is the one to ask, not `load_model`; from small files alone.

    A folder or file that neither can load counts as a predictor only if its configuration names one.
    """
    path = Path(path)
    folder = path if path_kind(path) == "folder" else path.parent
    if path.suffix.lower() == ".gguf":
        return _says_bert(path, lenient)
    if path_kind(folder / GRAPH_FILE) == "file":
        return True
    config = folder / "config.json"
    if path_kind(config) == "file":
        return _kind(read_json_object(config)) is not None
    return path.suffix.lower() in (".pt", ".pth", ".npz", ".ckpt")


def _says_bert(path: Path, lenient: Collection[Leniency]) -> bool:
    """Whether a GGUF file's architecture is BERT. Usually its first key; a whole header has a vocabulary in it."""
    with SourceFile(path) as source:
        head = source.read(0, min(_PEEKED_BYTES, source.size_bytes))
    _, key, rest = head.partition(b"general.architecture")
    if not key:
        return read_gguf_header(path, lenient=lenient).metadata.get("general.architecture") == _GGUF
    name = _GGUF.encode()
    return rest.startswith(struct.pack("<IQ", _GGUF_STRING, len(name)) + name)


def _undescribed(
    folder: Path, checkpoint: Checkpoint, by_graph_file: bool, input_shape: tuple[int, ...] | None
) -> Parts:
    """A model of which no configuration speaks."""
    if by_graph_file:
        return parts_of.graph_file(folder, checkpoint.tensors)
    if is_torchvision_resnet(checkpoint.tensors):
        return parts_of.torchvision_resnet(checkpoint.tensors, str(checkpoint.path), input_shape)
    if input_shape is None:
        raise MissingFileError(
            f"beside {checkpoint.path} there is neither a config.json nor a {GRAPH_FILE}, so nothing says what model "
            "its tensors are; write the graph down, or give input_shape if the layers simply follow each other"
        )
    return parts_of.sequential(checkpoint.tensors, input_shape)


def _kind(config: Mapping[str, object]) -> str | None:
    """`model_type`, or the family of the class that saved the model; None for what is no known predictor."""
    named = config.get("model_type")
    if named is not None:
        return named if isinstance(named, str) and (named == _RESNET or named in ENCODERS) else None
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(first, str):
        return None
    if first.startswith("ResNet"):
        return _RESNET
    starts = ("Model", "For")
    return next(
        (
            name
            for name, family in ENCODERS.items()
            if first.startswith(tuple(family.class_prefix + start for start in starts))
        ),
        None,
    )


def _known(config: Mapping[str, object], where: str) -> str:
    kind = _kind(config)
    if kind is not None:
        return kind
    named = config.get("model_type") or config.get("architectures") or "nothing"
    try:
        architecture_of_json(config, where)
    except UnknownArchitectureError:
        known = ", ".join([*ENCODERS, _RESNET])
        raise UnknownArchitectureError(f"{where} names {str(named)[:60]!r}; known predictors: {known}") from None
    raise UnsupportedModelError(f"{where}: {str(named)[:60]} generates text: load_model is for it, not load_predictor")


def _check_gguf(metadata: Mapping[str, object], where: str) -> None:
    named = metadata.get("general.architecture")
    if named == _GGUF:
        return
    try:
        architecture_of_gguf(metadata, where)
    except UnknownArchitectureError:
        said = f"{where} has the architecture {str(named)[:60]!r}"
        raise UnknownArchitectureError(f"{said}; of predictors, GGUF files may hold {_GGUF}") from None
    raise UnsupportedModelError(f"{where}: {named} generates text: load_model is for it, not load_predictor")
