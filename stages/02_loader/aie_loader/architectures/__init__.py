"""Model families that have a graph. A new one is a row in `naming.py`, a reader of its configuration for each kind of
file, and, where it does something that no other family does, a switch in `decoder.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aie_loader.architectures.decoder import build_decoder
from aie_loader.architectures.gguf_families import GGUF_FAMILIES, config_from_gguf
from aie_loader.architectures.json_families import JSON_FAMILIES, config_from_json
from aie_loader.architectures.naming import NAMES
from aie_loader.config import ModelConfig
from aie_loader.errors import UnknownArchitectureError
from aie_loader.graph import Graph
from aie_tensor import Matrix

__all__ = ["ARCHITECTURES", "NAMES", "Architecture", "architecture_of_gguf", "architecture_of_json"]

JsonObject = Mapping[str, object]


class Builder(Protocol):
    """A graph over the tensors of a file, and the configuration with what only the tensors say."""

    def __call__(
        self, config: ModelConfig, tensors: Mapping[str, Matrix], where: str, *, is_gguf: bool
    ) -> tuple[ModelConfig, Graph]: ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read one family. `where` arguments name the file in errors."""

    from_gguf: Callable[[JsonObject, str], ModelConfig] | None  # None: no such GGUF files exist
    from_json: Callable[[JsonObject, JsonObject | None, str], ModelConfig]
    build: Builder = build_decoder


ARCHITECTURES: Mapping[str, Architecture] = {
    family: Architecture(
        partial(config_from_gguf, family) if family in GGUF_FAMILIES else None, partial(config_from_json, family)
    )
    for family in JSON_FAMILIES
}
_IN_JSON = {"gemma3_text": "gemma3", "gpt_neox": "gptneox"}  # `model_type` where it is not the family's name
_CLASS_NAMES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
}


def architecture_of_gguf(metadata: Mapping[str, object], where: str) -> Architecture:
    """By `general.architecture`. UnknownArchitectureError lists what is known."""
    known = {family: found for family, found in ARCHITECTURES.items() if found.from_gguf is not None}
    return _known(metadata.get("general.architecture"), known, where)


def architecture_of_json(config: Mapping[str, object], where: str) -> Architecture:
    """By `model_type` of `config.json`, or the class named in `architectures`."""
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    named = config.get("model_type") or (_CLASS_NAMES.get(first, first) if isinstance(first, str) else None)
    in_json = {family: name for name, family in _IN_JSON.items()}
    return _known(named, {in_json.get(family, family): found for family, found in ARCHITECTURES.items()}, where)


def _known(name: object, known: Mapping[str, Architecture], where: str) -> Architecture:
    if isinstance(name, str) and name in known:
        return known[name]
    said = "does not name its architecture" if name is None else f"has the unknown architecture {str(name)[:60]!r}"
    raise UnknownArchitectureError(f"{where} {said}; known: {', '.join(known)}")
