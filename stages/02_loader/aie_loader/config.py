"""What a decoder model is, in numbers; the same whatever file it came from. And the strict reading of such numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from aie_loader.errors import MalformedHeaderError

__all__ = ["Fields", "ModelConfig"]

_MAX_INTEGER = 1 << 31


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model."""

    architecture: str  # "llama"
    num_layers: int  # L
    hidden_size: int  # C
    intermediate_size: int  # F
    num_heads: int  # H, query heads
    num_kv_heads: int  # G; H / G query heads share one
    head_dim: int  # D
    vocab_size: int  # V
    max_position_embeddings: int  # longest context that the model was trained for
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool  # the output head is the embedding table
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # any of them ends a text
    rope_interleaved: bool  # pairs (2i, 2i+1), as GGUF stores llama; False: pairs (i, i + D/2), as in safetensors
    attention_bias: bool = False


class Fields:
    """Reads typed values out of metadata. Every error names the file, the key and what it should have been."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def get(self, key: str) -> object:
        """The raw value; None where the key is absent, and where JSON says null, which means the same."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = _MAX_INTEGER) -> int:
        value = self._value(key, default)
        if type(value) is not int or not low <= value <= high:  # `type is`: True is not a number here
            raise self.wrong(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
            raise self.wrong(key, "a finite positive number")
        return float(value)  # type: ignore[arg-type]

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One id, a list of ids, or nothing."""
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
            raise self.wrong(key, f"token ids below {vocab_size}")
        return tuple(ids)

    def wrong(self, key: str, expected: str) -> MalformedHeaderError:
        shown = repr(self.get(key))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        problem = "is missing" if self.get(key) is None else f"is {shown}"
        return MalformedHeaderError(f"{self.where}: {key} {problem}; it must be {expected}")

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        return default if value is None else value
