"""What a step of so many tokens takes, as measured while serving: the price list of speculation.

A decode step of one token is bound by reading the weights, so a second row is nearly free; at 32 rows arithmetic binds
and every further row is paid in full. Where the one turns into the other depends on model, precision and machine, so it
is not assumed but seen: the time of each step goes into a list by its number of tokens, and what lies between two known
numbers is taken from the line through them. What was never seen is taken to cost nothing more: one trial corrects that.
"""

from bisect import bisect_left, insort

__all__ = ["StepCost"]

_FORGET_AFTER = 1000  # steps; else one slow step, in which the machine was busy with others, would count for ever


class StepCost:
    """Seconds by tokens. `observe` and `seconds` cost O(log of the different numbers seen)."""

    def __init__(self) -> None:
        self._known: list[int] = []  # numbers of tokens, ascending
        self._seconds: dict[int, float] = {}
        self._seen_at: dict[int, int] = {}  # step of the last observation
        self._num_steps = 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step took so long. Disturbances only ever add time, so a shorter one counts for more than a longer one."""
        self._num_steps += 1
        known = self._seconds.get(num_tokens)
        if known is None:
            insort(self._known, num_tokens)
            self._seconds[num_tokens] = seconds
        else:
            self._seconds[num_tokens] = known + (seconds - known) * (1 / 4 if seconds < known else 1 / 16)
        self._seen_at[num_tokens] = self._num_steps
        if self._num_steps % _FORGET_AFTER == 0:
            self._forget()

    def seconds(self, num_tokens: int) -> float | None:
        """The expected time of a step; None as long as nothing is known."""
        known, times = self._known, self._seconds
        if not known:
            return None
        index = bisect_left(known, num_tokens)
        if index < len(known) and known[index] == num_tokens:
            return times[num_tokens]
        if index == 0:
            return times[known[0]]
        if index == len(known):  # beyond all: the line from the first to the last goes on
            low, high = known[0], known[-1]
            if low == high:
                return times[low]
        else:
            low, high = known[index - 1], known[index]
        slope = max(0.0, (times[high] - times[low]) / (high - low))
        return times[low] + slope * (num_tokens - low)

    def _forget(self) -> None:
        for num_tokens in [n for n in self._known if self._num_steps - self._seen_at[n] >= _FORGET_AFTER]:
            self._known.remove(num_tokens)
            del self._seconds[num_tokens], self._seen_at[num_tokens]
