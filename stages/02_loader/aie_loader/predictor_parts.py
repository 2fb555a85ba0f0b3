"""What each kind of model folder says about the predictor in it; `predictor.py` decides which kind it is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from aie_loader.architectures.encoders import (
    ENCODERS,
    EncoderConfig,
    EncoderFamily,
    Head,
    build_encoder,
    encoder_from_gguf,
    gguf_head,
    head_of_class,
    named_head,
    sentence_head,
)
from aie_loader.architectures.labels import Problem, read_labels, read_problem
from aie_loader.architectures.vision import (
    ImageInput,
    ResNetConfig,
    build_resnet,
    hf_names,
    read_image_input,
    resnet_from_json,
    resnet_from_tensors,
    torchvision_names,
)
from aie_loader.config import Fields
from aie_loader.errors import TokenizerError
from aie_loader.formats import optional_json_object
from aie_loader.graph import Graph
from aie_loader.graph_builder import build_graph
from aie_loader.graph_file import GRAPH_FILE, read_graph_file
from aie_loader.text.tokenizer import Tokenizer
from aie_tensor import InvalidInputError, Matrix

__all__ = [
    "Output",
    "Parts",
    "encoder",
    "gguf_encoder",
    "graph_file",
    "resnet",
    "sequential",
    "tokenizer_of",
    "torchvision_resnet",
]

Output: TypeAlias = Literal["token_states", "embedding", "logits", "token_logits", "image_logits", "values"]
Tensors = Mapping[str, Matrix]
JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Parts:
    """A predictor but for its files and its tokenizer; see `Predictor` for the meaning of each field."""

    architecture: str
    graph: Graph
    output: Output
    config: EncoderConfig | ResNetConfig | None = None
    labels: tuple[str, ...] = ()
    problem: Problem | None = None
    image: ImageInput | None = None


def tokenizer_of(folder: Path, parts: Parts, gguf: JsonObject | None = None) -> tuple[Tokenizer | None, int | None]:
    """The tokenizer beside a model that reads text, and the longest text in tokens, special ones included.

    An encoder must have one; a graph written by hand may be given ids by whoever wrote it. gguf: metadata to read it
    from, instead of files in the folder.
    """
    if "token_ids" not in parts.graph.inputs:
        return None, None
    if not isinstance(parts.config, EncoderConfig):
        tokenizer = Tokenizer.from_folder(folder) if (folder / "tokenizer.json").is_file() else None
        return tokenizer, tokenizer.batch_rules.max_length if tokenizer else None
    tokenizer, config = Tokenizer.from_folder(folder) if gguf is None else Tokenizer.from_gguf(gguf), parts.config
    if tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {config.vocab_size}"
        )
    stated = tokenizer.batch_rules.max_length  # files may say more than the table of positions has
    return tokenizer, config.num_positions if stated is None else min(stated, config.num_positions)


def encoder(
    family_name: str, folder: Path, metadata: JsonObject, tensors: Tensors, where: str, head_name: str | None
) -> Parts:
    """An encoder with the head that its files name, or the one that the caller does."""
    family = ENCODERS[family_name]
    fields = Fields(metadata, str(folder / "config.json"))
    config = family.read(fields, family_name)
    head = _head(family, folder, fields, metadata) if head_name is None else named_head(head_name)
    # Who asks for another head than the file's knows that the file's is left out.
    others = tuple(family.heads.values()) if head_name is not None else ()
    graph = build_encoder(family, config, head, tensors, where, ignored=others)
    outputs: Mapping[str, Output] = {"states": "token_states", "sequence": "logits", "token": "token_logits"}
    classifies = head.kind in ("sequence", "token")
    return Parts(
        architecture=family_name,
        graph=graph,
        output=outputs.get(head.kind, "embedding"),
        config=config,
        labels=config.labels if classifies else (),
        problem=config.problem if classifies else None,
    )


def gguf_encoder(metadata: JsonObject, tensors: Tensors, where: str, head_name: str | None) -> Parts:
    """A BERT in a GGUF file, with the pooling that the file names, or the one that the caller does."""
    config, own_head = encoder_from_gguf(metadata, tensors, where)
    head = own_head if head_name is None else gguf_head(head_name)
    graph = build_encoder(ENCODERS["bert"], config, head, tensors, where, is_gguf=True)
    output: Output = "token_states" if head.kind == "states" else "embedding"
    return Parts(architecture="bert", graph=graph, output=output, config=config)


def resnet(folder: Path, metadata: JsonObject, tensors: Tensors, where: str, shape: tuple[int, ...] | None) -> Parts:
    """A ResNet as the Hugging Face libraries save it."""
    has_classifier = any(name.startswith("classifier.") for name in tensors)
    config = resnet_from_json(metadata, str(folder / "config.json"), has_classifier=has_classifier)
    image = _image(folder, config, shape)
    return _resnet(config, image, build_resnet(config, image, tensors, where, hf_names(tensors)))


def torchvision_resnet(tensors: Tensors, where: str, shape: tuple[int, ...] | None) -> Parts:
    """A ResNet as torchvision saves it: tensors and nothing else."""
    config = resnet_from_tensors(tensors, where)
    image = _image(None, config, shape)
    return _resnet(config, image, build_resnet(config, image, tensors, where, torchvision_names(tensors)))


def graph_file(folder: Path, tensors: Tensors) -> Parts:
    """A graph written by hand. What its output means follows from its inputs; a `config.json` may name labels."""
    graph = read_graph_file(folder / GRAPH_FILE, tensors)
    fields = Fields(optional_json_object(folder / "config.json"), str(folder / "config.json"))
    output = _meaning(graph)
    labels = read_labels(fields) if fields.get("id2label") is not None else ()
    width = graph.shapes[graph.outputs[0]][-1:]
    if labels and width != (len(labels),):
        raise fields.wrong("id2label", f"an object with a label for each of the {list(width)} outputs")
    return Parts(
        architecture="graph",
        graph=graph,
        output="logits" if labels and output == "embedding" else output,
        labels=labels,
        problem=read_problem(fields, len(labels)) if labels else None,
    )


def sequential(tensors: Tensors, shape: tuple[int, ...]) -> Parts:
    """Layers one after another, as their names and shapes say."""
    graph = build_graph(tensors, shape)
    return Parts(architecture="sequential", graph=graph, output=_meaning(graph))


def _head(family: EncoderFamily, folder: Path, fields: Fields, metadata: JsonObject) -> Head:
    pooled = sentence_head(folder)
    if pooled is not None:
        return pooled
    classes = metadata.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    if first is not None and not isinstance(first, str):
        raise fields.wrong("architectures", "a list of class names")
    return head_of_class(family, first, fields.where)


def _image(folder: Path | None, config: ResNetConfig, shape: tuple[int, ...] | None) -> ImageInput:
    image = read_image_input(folder, config.channels)
    if shape is None:
        return image
    if len(shape) != 3 or shape[0] != config.channels or min(shape) < 1:
        raise InvalidInputError(
            f"input_shape must be ({config.channels}, height, width), not {shape}", param="input_shape"
        )
    return replace(image, height=shape[1], width=shape[2])


def _resnet(config: ResNetConfig, image: ImageInput, graph: Graph) -> Parts:
    return Parts(
        architecture="resnet",
        graph=graph,
        output="embedding" if config.labels is None else "image_logits",
        config=config,
        labels=config.labels or (),
        problem=None if config.labels is None else "single_label",
        image=image,
    )


def _meaning(graph: Graph) -> Output:
    """Of a graph that nobody describes: by the shapes of its first input and output."""
    given, made = graph.shapes[graph.inputs[0]], graph.shapes[graph.outputs[0]]
    if given[0] == "T":
        return "token_states" if made[0] == "T" else "embedding" if made[0] == "S" else "values"
    if len(made) == 2 and made[0] == "B":
        return "image_logits" if len(given) == 4 else "logits"
    return "values"
