"""How long a step would have taken without the prompts in it, learned from the steps that had none.

A mixed step is one pass through the weights for everybody, so its time has no natural parts. What its decodes need is
taken to be what steps of as many decoding tokens took lately when they were alone; what the step took on top, the
prompts in it cost the others. As long as nothing was seen alone, tokens share the step's time evenly, which is too
kind to the prompts: a step of decodes is bound by reading the weights, not by its tokens.
"""

from bisect import bisect_left, insort

__all__ = ["DecodePace"]

_WEIGHT = 1 / 8  # of the newest step


class DecodePace:
    """Seconds by number of tokens; between two numbers that were seen, a straight line."""

    __slots__ = ("_numbers", "_seconds")

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # smoothed; never more entries than a batch has tokens
        self._numbers: list[int] = []  # its keys, ascending

    def learn(self, num_tokens: int, seconds: float) -> None:
        """A step of decodes alone."""
        before = self._seconds.get(num_tokens)
        if before is None:
            insort(self._numbers, num_tokens)
            self._seconds[num_tokens] = seconds
        else:
            self._seconds[num_tokens] = before + (seconds - before) * _WEIGHT

    def need_s(self, num_tokens: int, num_all: int, step_s: float) -> float:
        """Of a step of `num_all` tokens that took `step_s`, what its `num_tokens` decoding ones would have taken."""
        if num_tokens == 0:
            return 0.0
        if not self._numbers:
            return step_s * num_tokens / num_all
        return min(step_s, self._expected_s(num_tokens))

    def _expected_s(self, num_tokens: int) -> float:
        numbers, seconds = self._numbers, self._seconds
        at = bisect_left(numbers, num_tokens)
        if at == len(numbers):
            return seconds[numbers[-1]]
        above = numbers[at]
        if above == num_tokens or at == 0:
            return seconds[above]
        below = numbers[at - 1]
        part = (num_tokens - below) / (above - below)
        return seconds[below] + (seconds[above] - seconds[below]) * part
