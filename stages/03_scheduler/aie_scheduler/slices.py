"""How much of the prompts goes into a step while others decode.

A decoding stream waits as long as its step takes, and a step takes as long as all that is in it. A prompt of 4000
tokens, read 500 a step, would hold everybody up by half a second, again and again. So while anybody decodes

    all prompts together get at most `max_prefill_tokens` a step, and
    a prompt longer than that is read in slices, about twice as many tokens as there are streams that decode.

A token costs about the same in either, or less in a prompt, so a dozen streams or more are slowed down to a third at
worst. Attention comes on top: at `DEPTH` tokens it costs a token as much as everything else (as for SmolLM2-135M), so
slices get thinner as the prompt goes on. And each further request that waits for its first token makes them thicker:
one must not hold up sixteen, but neither should two streams hold up forty prompts.

Short prompts go whole: cutting them would cost their own first token more than it brings the others.
"""

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.request import SequenceState

__all__ = ["PrefillBudget"]

SLICE_PER_STREAM = 2  # tokens of long prompts for each that decodes
MIN_SLICE = 32  # below that a step reads the weights for too little
DEPTH = 4096  # tokens


class PrefillBudget:
    """Tokens of prompts that one step may compute, on top of `num_decoding` streams. `num_waiting`: requests that wait
    for their first token, begun or not.
    """

    def __init__(self, config: SchedulerConfig, num_tokens: int, *, num_decoding: int, num_waiting: int) -> None:
        limit = config.max_prefill_tokens
        self.left = num_tokens
        self._block_size = config.block_size
        self._share = config.prefill_share
        self._slices: float | None = None  # tokens left for long prompts, at the price of the first
        if num_decoding and limit is not None:
            self.left = min(num_tokens, limit)
            self._slices = max(MIN_SLICE, SLICE_PER_STREAM * num_decoding) + MIN_SLICE * max(0, num_waiting - 1)
        self._is_sliced = False
        self._num_granted = 0

    def is_splinter(self, num_remaining: int) -> bool:
        """Whether what is left is too little of a prompt with so much to do: a splinter costs more than it brings."""
        return self._num_granted > 0 and self.left < min(num_remaining, self._block_size)

    def grant(self, state: SequenceState) -> int:
        """Tokens for this prompt: all it has if they fit into its share, else that share; 0 where the slices are used
        up.
        """
        most = min(self.left, self._slice(state))
        if state.num_remaining <= most:
            return self._take(state, state.num_remaining)
        if most < self.left:
            return self._take(state, most)
        return self._take(state, max(int(self.left * self._share), min(self.left, self._block_size)))

    def extend(self, state: SequenceState, num_tokens: int) -> int:
        """`num_tokens`, and what nobody behind this prompt wanted."""
        extra = min(self.left, state.num_remaining - num_tokens, self._slice(state))
        return num_tokens + self._take(state, extra)

    def _slice(self, state: SequenceState) -> int:
        """Most tokens of this prompt at this depth; the first long prompt of a step always gets a block's worth."""
        if self._slices is None or not state.is_long:
            return self.left
        most = int(self._slices / _price(state))
        if most >= min(self._block_size, state.num_remaining):
            return most
        return 0 if self._is_sliced else self._block_size

    def _take(self, state: SequenceState, num_tokens: int) -> int:
        self.left -= num_tokens
        self._num_granted += num_tokens > 0
        if self._slices is not None and state.is_long:
            self._slices -= num_tokens * _price(state)
            self._is_sliced = True
        return num_tokens


def _price(state: SequenceState) -> float:
    return 1.0 + state.num_computed / DEPTH
