"""What goes into sampling and what comes out: rows of a step, tokens with their log-probabilities."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aie_engine.batch import Int32Array
from aie_engine.params import SamplingParams
from aie_engine.requests import TokenLogprobs
from aie_engine.sampling.steering import Steering

__all__ = ["ArgmaxRows", "Float32Array", "SampleOutput", "SampleRow", "UInt32Array", "numpy_argmax"]

Float32Array = npt.NDArray[np.float32]
UInt32Array = npt.NDArray[np.uint32]
ArgmaxRows = Callable[[Float32Array], Int32Array]


@dataclass(slots=True)
class SampleRow:
    """Who wants a token out of a row of logits. Made once per request, since what its wishes come to (`steering`) is
    prepared then; from step to step only `position` and `mask` change, and `at` gives a row for another position."""

    params: SamplingParams
    position: int  # known tokens before the one to be sampled; with the seed it decides the draw
    tokens: Int32Array  # the first `position` of them are known: the prompt, then what was sampled (or is guessed)
    num_prompt: int
    stop_ids: frozenset[int] = frozenset()  # not to be sampled before `min_tokens`
    mask: UInt32Array | None = None  # of a constraint: token t is allowed where bit t % 32 of word t // 32 is set
    steering: Steering | None = field(init=False)  # None: the logits count as they are

    def __post_init__(self) -> None:
        self.steering = Steering.of(self.params, self.stop_ids)

    @property
    def num_sampled(self) -> int:
        """Tokens of the answer before this one."""
        return self.position - self.num_prompt

    @property
    def is_steered(self) -> bool:
        """Whether anything may move the logits of this row before a token is chosen."""
        return self.mask is not None or (
            self.steering is not None and (self.steering.is_lasting or self.num_sampled < self.params.min_tokens)
        )

    def at(self, position: int, mask: UInt32Array | None = None) -> "SampleRow":
        """The same request's row at another position, such as behind a guessed token."""
        other = object.__new__(SampleRow)
        other.params, other.position, other.tokens, other.num_prompt = (
            self.params, position, self.tokens, self.num_prompt,
        )  # fmt: skip
        other.stop_ids, other.mask, other.steering = self.stop_ids, mask, self.steering
        return other


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """One entry per row. The token ids of rows in `failed` or `stuck` mean nothing."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]  # None where the request wants none, or where the row has no token
    failed: frozenset[int]  # rows whose logits were no numbers (NaN, +∞, or nothing but −∞)
    stuck: frozenset[int] = frozenset()  # rows whose wishes (mask, allowed tokens, bad words, …) leave no token


def numpy_argmax(logits: Float32Array) -> Int32Array:
    """Index of each row's first largest, or first NaN where there is one: [R, V] → [R]."""
    best: Int32Array = np.argmax(logits, axis=1).astype(np.int32)
    return best
