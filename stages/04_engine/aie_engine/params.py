"""How a request wants its tokens chosen, and when it wants to end."""

import math
from typing import Final

import msgspec

from aie_tensor import InvalidInputError

__all__ = ["MAX_LOGPROBS", "SamplingParams"]

_COLDEST: Final = 1e-5  # logits divided by less than this leave float32; the likeliest token wins long before

MAX_LOGPROBS: Final = 20  # as in OpenAI's API: each costs a response line, none costs the model anything
_MAX_BIAS: Final = 100.0  # and the penalties' bound: as in OpenAI's API
_MAX_PENALTY: Final = 2.0


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The defaults are OpenAI's: temperature 1 and no filter.

    Everything applies in vLLM's order. Logits are moved first, which counts for greedy requests, too:
    allowed_token_ids, bad_words, min_tokens, logit_bias, then the penalties: repetition, frequency, presence. Then come
    temperature, min_p, top_k, top_p and typical_p (which vLLM has not), each on what the one before has left.
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
    typical_p: float = 1.0  # the most typical that together reach this probability; 1: all
    repetition_penalty: float = 1.0  # logits of tokens in prompt or answer: divided by it, or multiplied if negative
    frequency_penalty: float = 0.0  # taken off a token's logit for each time that it is in the answer
    presence_penalty: float = 0.0  # taken off once if it is there at all
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit), each token once
    bad_words: tuple[tuple[int, ...], ...] = ()  # sequences of tokens that the answer must not contain
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    min_tokens: int = 0  # until so many are there, no token that would end the answer
    prompt_logprobs: int | None = None  # as `logprobs`, for each token of the prompt but the first

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _COLDEST or self.top_k == 1

    @property
    def is_filtered(self) -> bool:
        """Whether some tokens may be left out of the draw."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.typical_p < 1

    def with_seed(self, seed: int) -> "SamplingParams":
        """The same with this seed."""
        return msgspec.structs.replace(self, seed=seed)

    def without_prompt_logprobs(self) -> "SamplingParams":
        """The same without them."""
        return msgspec.structs.replace(self, prompt_logprobs=None)

    def validated(self) -> "SamplingParams":
        """These parameters. Raises `InvalidInputError` naming the first field that makes no sense."""
        _require(0 <= self.temperature < math.inf, "temperature", "a finite number of at least 0")
        _require(self.top_k >= -1, "top_k", "at least 1, or 0 or -1 for no limit")
        _require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        _require(0 <= self.min_p <= 1, "min_p", "from 0 to 1")
        _require(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "a whole number of 64 bits")
        _require(self.max_tokens >= 1, "max_tokens", "at least 1")
        _require(all(token >= 0 for token in self.stop_token_ids), "stop_token_ids", "token ids of at least 0")
        for field in ("logprobs", "prompt_logprobs"):
            value = getattr(self, field)
            _require(value is None or 0 <= value <= MAX_LOGPROBS, field, f"from 0 to {MAX_LOGPROBS}")
        _require(0 < self.typical_p <= 1, "typical_p", "above 0 and at most 1")
        _require(0 < self.repetition_penalty < math.inf, "repetition_penalty", "a finite number above 0")
        for field in ("frequency_penalty", "presence_penalty"):
            _require(abs(getattr(self, field)) <= _MAX_PENALTY, field, f"from -{_MAX_PENALTY:g} to {_MAX_PENALTY:g}")
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", f"from 0 to max_tokens ({self.max_tokens})")
        self._validate_tokens()
        return self

    def _validate_tokens(self) -> None:
        biased = [token for token, _ in self.logit_bias]
        _require(len(set(biased)) == len(biased), "logit_bias", "given once for each token")
        _require(
            all(abs(value) <= _MAX_BIAS for _, value in self.logit_bias),
            "logit_bias",
            f"made of numbers from -{_MAX_BIAS:g} to {_MAX_BIAS:g}",
        )
        _require(all(self.bad_words), "bad_words", "made of sequences of at least one token")
        _require(self.allowed_token_ids != (), "allowed_token_ids", "a list of at least one token")
        self._require_ids(2**31)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises `InvalidInputError` naming the first field with a token that a model of so many does not have."""
        self._require_ids(vocab_size)

    def _require_ids(self, limit: int) -> None:
        for field, tokens in (
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("bad_words", [token for word in self.bad_words for token in word]),
            ("allowed_token_ids", self.allowed_token_ids or ()),
        ):
            if tokens:
                _require(min(tokens) >= 0 and max(tokens) < limit, field, f"of tokens from 0 to {limit - 1}")


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidInputError(f"{field} must be {rule}.", param=field)
