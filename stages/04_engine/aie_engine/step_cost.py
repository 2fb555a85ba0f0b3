"""What a step of so many tokens takes, as measured while serving: the price list of speculation.

A decode step of one token is bound by reading the weights, so a second row is nearly free; at 32 rows arithmetic binds
and every further row is paid in full. Where the one turns into the other depends on model, precision and machine, so it
is not assumed but seen: the time of each step goes into a list by its number of tokens (four entries per doubling), and
what lies between two known numbers is taken from the line through them. What was seen fewer than three times is not
known, and what is not known is taken to cost nothing more: a few trials correct that.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

__all__ = ["StepCost"]

_NUM_NEEDED = 3  # times; the first step of its size is often slow for reasons of its own
_FORGET_AFTER = 1000  # steps; else a time at which the machine was busy with others would count for ever


@dataclass(slots=True)
class _Entry:
    seconds: float
    num_seen: int
    seen_at: int  # step of the last time


class StepCost:
    """Seconds by tokens. `observe` and `seconds` cost O(log of the number of entries)."""

    def __init__(self) -> None:
        self._known: list[int] = []  # numbers of tokens, ascending
        self._entries: dict[int, _Entry] = {}
        self._num_steps = 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step took so long. Disturbances only ever add time, so a shorter one counts for more than a longer one."""
        self._num_steps += 1
        size = _rounded(num_tokens)
        entry = self._entries.get(size)
        if entry is None:
            self._entries[size] = _Entry(seconds, 1, self._num_steps)
        else:
            self._add(size, entry, seconds)
        if self._num_steps % _FORGET_AFTER == 0:
            self._forget()

    def seconds(self, num_tokens: int) -> float | None:
        """The expected time of a step; None as long as nothing is known."""
        known, entries = self._known, self._entries
        if not known:
            return None
        index = bisect_left(known, num_tokens)
        if index < len(known) and known[index] == num_tokens:
            return entries[num_tokens].seconds
        if index == 0:
            return entries[known[0]].seconds
        # Beyond all, the line from the first to the last goes on.
        low, high = (known[0], known[-1]) if index == len(known) else (known[index - 1], known[index])
        if low == high:
            return entries[low].seconds
        slope = max(0.0, (entries[high].seconds - entries[low].seconds) / (high - low))
        return entries[low].seconds + slope * (num_tokens - low)

    def _add(self, size: int, entry: _Entry, seconds: float) -> None:
        entry.num_seen += 1
        entry.seen_at = self._num_steps
        if entry.num_seen > _NUM_NEEDED:
            entry.seconds += (seconds - entry.seconds) * (1 / 4 if seconds < entry.seconds else 1 / 16)
            return
        entry.seconds = min(entry.seconds, seconds)
        if entry.num_seen == _NUM_NEEDED:
            insort(self._known, size)

    def _forget(self) -> None:
        old = [size for size, entry in self._entries.items() if self._num_steps - entry.seen_at >= _FORGET_AFTER]
        for size in old:
            del self._entries[size]
        self._known = sorted(size for size, entry in self._entries.items() if entry.num_seen >= _NUM_NEEDED)


def _rounded(num_tokens: int) -> int:
    """To three binary digits, down: 1 to 8, 10, 12, 14, 16, 20, …"""
    shift = max(0, num_tokens.bit_length() - 3)
    return num_tokens >> shift << shift
