"""Model families that have a graph. A new one is one entry here: two readers of its configuration and a builder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aie_loader.architectures.llama import build_llama, safetensors_name
from aie_loader.architectures.llama_config import config_from_gguf, config_from_json
from aie_loader.config import ModelConfig
from aie_loader.errors import UnknownArchitectureError
from aie_loader.graph import Graph
from aie_tensor import Matrix

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of_gguf", "architecture_of_json", "safetensors_name"]

JsonObject = Mapping[str, object]


class Builder(Protocol):
    """A graph over the tensors of a file, and the configuration with what only the tensors say."""

    def __call__(self, config: ModelConfig, tensors: Mapping[str, Matrix], where: str) -> tuple[ModelConfig, Graph]: ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read one family. `where` arguments name the file in errors."""

    from_gguf: Callable[[JsonObject, str], ModelConfig]
    from_json: Callable[[JsonObject, JsonObject | None, str], ModelConfig]
    build: Builder


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(config_from_gguf, config_from_json, build_llama),
}
_CLASS_NAMES = {"LlamaForCausalLM": "llama"}


def architecture_of_gguf(metadata: Mapping[str, object], where: str) -> Architecture:
    """By `general.architecture`. UnknownArchitectureError lists what is known."""
    return _known(metadata.get("general.architecture"), where)


def architecture_of_json(config: Mapping[str, object], where: str) -> Architecture:
    """By `model_type` of `config.json`, or the class named in `architectures`."""
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    named = config.get("model_type") or (_CLASS_NAMES.get(first, first) if isinstance(first, str) else None)
    return _known(named, where)


def _known(name: object, where: str) -> Architecture:
    if isinstance(name, str) and name in ARCHITECTURES:
        return ARCHITECTURES[name]
    said = "does not name its architecture" if name is None else f"has the unknown architecture {str(name)[:60]!r}"
    raise UnknownArchitectureError(f"{where} {said}; known: {', '.join(ARCHITECTURES)}")
