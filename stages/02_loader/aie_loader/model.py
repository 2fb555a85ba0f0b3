"""A model file or folder into everything that an engine needs: configuration, graph, tokenizer, chat template.

Two entries, because two processes need different halves. `load_model` maps the weights and builds the graph: for the
worker that computes. `load_tokenizer` reads only headers and small files: for the process that talks HTTP.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aie_loader.architectures import Architecture, architecture_of_gguf, architecture_of_json
from aie_loader.chat.template import ChatTemplate
from aie_loader.config import ModelConfig
from aie_loader.errors import ChatTemplateError, MissingFileError, ModelFileError, TokenizerError
from aie_loader.formats import (
    STRICT,
    Checkpoint,
    Leniency,
    open_checkpoint,
    open_gguf,
    read_gguf_header,
    read_json_object,
)
from aie_loader.formats.source import SourceFile, path_kind
from aie_loader.graph import Graph
from aie_loader.repository import served_name
from aie_loader.text.tokenizer import Tokenizer

__all__ = ["Model", "load_model", "load_tokenizer"]

Format = Literal["gguf", "safetensors"]  # "safetensors" stands for a folder in Hugging Face's way, whatever its weights
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".npz"}


@dataclass(slots=True)
class Model:
    """A loaded model. Weights are views of mapped files: they cost memory only as far as they are touched."""

    name: str
    path: Path
    format: Format
    config: ModelConfig
    graph: Graph  # unfused; `aie_loader.fuse` makes it faster
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    metadata: Mapping[str, object]  # GGUF keys, or the contents of config.json
    load_phases: Mapping[str, float]  # seconds: opening the file, configuration, tokenizer, graph
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

    def close(self) -> None:
        """Forget the weights. Matrices that somebody still holds stay valid; the mapping ends with the last of them."""
        self.checkpoint.close()
        self.graph = Graph(self.graph.inputs, self.graph.nodes, self.graph.outputs)


def load_model(path: Path | str, *, lenient: Collection[Leniency] = STRICT) -> Model:
    """Load a `.gguf` file, a Hugging Face folder (safetensors or `.bin`), or one such file beside its config.json.

    lenient: differences from the formats' rules to let through; the errors say which would help.
    Raises ModelFileError leaves for files that are not what they claim, UnsupportedModelError for features that are
    missing here, TokenizerError where the tokenizer is missing or broken; each names file and thing.
    """
    phases = _Phases()
    path = Path(path)
    kind = _detect_format(path)
    checkpoint: Checkpoint
    if kind == "gguf":
        checkpoint = open_gguf(path, lenient=lenient)
        metadata = checkpoint.metadata
        phases.end("open")
        architecture, config = _config_from_gguf(path, metadata)
        phases.end("configuration")
        tokenizer, template = _text_from_gguf(path, metadata)
        phases.end("tokenizer")
    else:
        folder = path if path_kind(path) == "folder" else path.parent
        metadata = read_json_object(_config_path(folder))
        architecture, config = _config_from_folder(folder, metadata)
        phases.end("configuration")
        tokenizer, template = _text_from_folder(folder)
        phases.end("tokenizer")
        checkpoint = open_checkpoint(path, lenient=lenient)
        phases.end("open")
    _check_vocabulary(path, tokenizer, config)
    config, graph = architecture.build(config, checkpoint.tensors, str(path), is_gguf=kind == "gguf")
    return Model(
        name=served_name(path),
        path=path,
        format=kind,
        config=config,
        graph=graph,
        tokenizer=tokenizer,
        chat_template=template,
        metadata=metadata,
        load_phases=phases.end("graph"),
        weight_bytes=sum(matrix.nbytes for matrix in graph.weights.values()),
        checkpoint=checkpoint,
    )


def load_tokenizer(
    path: Path | str, *, lenient: Collection[Leniency] = STRICT
) -> tuple[Tokenizer, ChatTemplate | None, ModelConfig]:
    """Tokenizer, chat template and configuration, without touching or mapping any weight."""
    path = Path(path)
    if _detect_format(path) == "gguf":
        metadata = read_gguf_header(path, lenient=lenient).metadata
        config = _config_from_gguf(path, metadata)[1]
        tokenizer, template = _text_from_gguf(path, metadata)
    else:
        folder = path if path_kind(path) == "folder" else path.parent
        config = _config_from_folder(folder, read_json_object(_config_path(folder)))[1]
        tokenizer, template = _text_from_folder(folder)
    _check_vocabulary(path, tokenizer, config)
    return tokenizer, template, config


def _detect_format(path: Path) -> Format:
    """By content, not by name: a file that starts with GGUF's magic number, a folder, or a file of its weights."""
    if path_kind(path) == "folder":
        return "safetensors"
    with SourceFile(path) as source:
        start = source.read(0, min(4, source.size_bytes))
    if start in (b"GGUF", b"FUGG") or path.suffix.lower() == ".gguf":
        return "gguf"
    if path.suffix.lower() in _WEIGHT_SUFFIXES:
        return "safetensors"
    raise ModelFileError(f"{path} is neither a GGUF file nor a .safetensors file nor a model folder")


def _check_vocabulary(path: Path, tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Every id that text can become must have a row in the embedding. More rows than tokens are usual (padding)."""
    if tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {config.vocab_size}"
        )


def _config_from_gguf(path: Path, metadata: Mapping[str, object]) -> tuple[Architecture, ModelConfig]:
    architecture = architecture_of_gguf(metadata, str(path))
    assert architecture.from_gguf is not None, metadata  # `architecture_of_gguf` gives no other
    return architecture, architecture.from_gguf(metadata, str(path))


def _config_path(folder: Path) -> Path:
    path = folder / "config.json"
    if path_kind(path) is None:
        raise MissingFileError(f"{folder} holds no config.json, so it is not a model folder")
    return path


def _config_from_folder(folder: Path, config: Mapping[str, object]) -> tuple[Architecture, ModelConfig]:
    where = str(folder / "config.json")
    architecture = architecture_of_json(config, where)
    generation = folder / "generation_config.json"
    more = read_json_object(generation) if path_kind(generation) is not None else None
    return architecture, architecture.from_json(config, more, where)


def _text_from_gguf(path: Path, metadata: Mapping[str, object]) -> tuple[Tokenizer, ChatTemplate | None]:
    try:
        return Tokenizer.from_gguf(metadata), ChatTemplate.from_gguf(metadata)
    except (TokenizerError, ChatTemplateError) as error:  # metadata does not know which file it came from
        raise type(error)(f"{path}: {error}", param=error.param) from error


def _text_from_folder(folder: Path) -> tuple[Tokenizer, ChatTemplate | None]:
    return Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder)


class _Phases:
    """A stop watch with laps."""

    def __init__(self) -> None:
        self._lap_began = time.perf_counter()
        self._seconds: dict[str, float] = {}

    def end(self, phase: str) -> Mapping[str, float]:
        """Whatever passed since the last call was `phase`. Gives all so far."""
        now = time.perf_counter()
        self._seconds[phase] = now - self._lap_began
        self._lap_began = now
        return self._seconds
