"""What a decoder model is, in numbers; the same whatever file it came from. And the strict reading of such numbers."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aie_loader.errors import MalformedHeaderError

__all__ = ["Fields", "ModelConfig", "RopeScaling"]

_MAX_INTEGER = 1 << 31


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies are stretched over texts longer than those of the training; see `aie_tensor.ops`."""

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope", "factors"]
    factor: float = 1.0
    trained_len: int = 0  # original_max_position_embeddings
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    attention_factor: float | None = None  # None: as the formula of `kind` has it
    truncate: bool = True  # yarn
    factors: tuple[float, ...] = ()  # longrope, and files that store the result: a divisor for each pair


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model; from `norm` on what families differ in, with Llama's as defaults."""

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
    norm_eps: float
    tie_word_embeddings: bool  # the output head is the embedding table
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # any of them ends a text
    rope_interleaved: bool  # pairs (2i, 2i+1), as GGUF stores llama; False: pairs (i, i + D/2), as in safetensors
    attention_bias: bool = False  # on q, k and v: the file must have them
    more_biases: tuple[str, ...] = ()  # other parts of a layer whose biases the file must have: "attn_output", "ffn_up"
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0  # added to the weights of the norms; Gemma stores weight − 1
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"] = "silu"
    is_gated: bool = True  # activation(gate) · up, two matrices, instead of activation(up)
    has_qk_norm: bool = False  # queries and keys normalised head by head
    has_post_norms: bool = False  # Gemma 2 and 3: what a block gives is normalised, too
    is_parallel: bool = False  # GPT-NeoX: attention and feed-forward read the same stream
    has_learned_positions: bool = False  # GPT-2: a table of positions instead of rotation
    rotary_dim: int | None = None  # features of a head that turn; None: all
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = None  # for layers with a window (Gemma 3), unscaled; None: as the others
    windows: tuple[int | None, ...] = ()  # for each layer, how many positions it sees; (): all see all
    attention_scale: float | None = None  # None: D^-0.5
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0

    def window(self, layer: int) -> int | None:
        """How many positions back a layer sees, itself included; None: all."""
        return self.windows[layer] if self.windows else None


class Fields:
    """Reads typed values out of metadata. Every error names the file, the key and what it should have been."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there, be it with null."""
        return key in self._values

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
        if not _is_positive(value):
            raise self.wrong(key, "a finite positive number")
        return float(value)  # type: ignore[arg-type]

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str, choices: Sequence[str] | None = None) -> str:
        """A word, one of `choices` where they are given."""
        value = self._value(key, default)
        if not isinstance(value, str) or (choices is not None and value not in choices):
            raise self.wrong(key, f"one of {', '.join(choices)}" if choices else "a text")
        return value

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """So many finite positive numbers."""
        value = self.get(key)
        if not isinstance(value, list) or len(value) != length or not all(_is_positive(item) for item in value):
            raise self.wrong(key, f"{length} finite positive numbers")
        return tuple(map(float, value))

    def part(self, key: str) -> "Fields | None":
        """An object inside this one; None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object or null")
        return Fields(value, f"{self.where}: {key}")

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


def _is_positive(value: object) -> bool:
    if type(value) not in (int, float):
        return False
    return 0 < value <= sys.float_info.max  # type: ignore[operator]  # an integer may be beyond what a float can be
