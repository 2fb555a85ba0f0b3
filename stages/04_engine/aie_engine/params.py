"""How a request wants its tokens chosen, and when it wants to end."""

import math
from typing import Final

import msgspec

from aie_tensor import InvalidInputError

__all__ = ["MAX_LOGPROBS", "SamplingParams"]

_COLDEST: Final = 1e-5  # logits divided by less than this leave float32; the likeliest token wins long before

MAX_LOGPROBS: Final = 20  # as in OpenAI's API: each costs a response line, none costs the model anything


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The defaults are OpenAI's: temperature 1 and no filter.

    Filters apply in the order temperature, min_p, top_k, top_p, each to what the one before has left (vLLM's order).
    """

    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int = 0  # only the k likeliest; 0 or −1: all
    top_p: float = 1.0  # the likeliest that together reach this probability; 1: all
    min_p: float = 0.0  # only those at least this fraction as likely as the likeliest; 0: all
    seed: int | None = None  # 64 bits; None: the engine draws one for the request
    max_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()  # besides the model's own end-of-sequence tokens
    ignore_eos: bool = False  # go on after an end-of-sequence token, for benchmarks
    logprobs: int | None = None  # None: none; n: the sampled token's and the n likeliest

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _COLDEST or self.top_k == 1

    def with_seed(self, seed: int) -> "SamplingParams":
        """The same with this seed."""
        return msgspec.structs.replace(self, seed=seed)

    def validated(self) -> "SamplingParams":
        """These parameters. Raises `InvalidInputError` naming the first field that makes no sense."""
        _require(0 <= self.temperature < math.inf, "temperature", "a finite number of at least 0")
        _require(self.top_k >= -1, "top_k", "at least 1, or 0 or -1 for no limit")
        _require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        _require(0 <= self.min_p <= 1, "min_p", "from 0 to 1")
        _require(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "a whole number of 64 bits")
        _require(self.max_tokens >= 1, "max_tokens", "at least 1")
        _require(all(token >= 0 for token in self.stop_token_ids), "stop_token_ids", "token ids of at least 0")
        _require(self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"from 0 to {MAX_LOGPROBS}")
        return self


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidInputError(f"{field} must be {rule}.", param=field)
