"""Who has run out of time: a heap, so that the front looks at the nearest deadline only and not at every request.

A request that ends in time leaves a dead entry behind, and with it all that it brought and was answered. When dead
entries outnumber the living they are dropped: else a server would keep every request until its deadline, minutes later.
"""

import heapq
from collections.abc import Mapping

from aie_engine.predictors.books import Member

__all__ = ["Deadlines"]

_SLACK = 64  # dead entries beyond the living, so that a few requests do not rebuild all the time


class Deadlines:
    """Not thread-safe: under the front's lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Member]] = []
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, member: Member) -> None:
        """Does nothing for one that may take for ever."""
        if member.deadline_s is not None:
            heapq.heappush(self._heap, (member.deadline_s, self._num_added, member))
            self._num_added += 1

    def take_due(self, now: float) -> list[Member]:
        """Those whose time is over, among them some that have ended long ago."""
        due: list[Member] = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def forget_ended(self, still_open: Mapping[str, Member]) -> None:
        """Call when requests have ended; over all of them it costs a constant each."""
        if len(self._heap) > 2 * len(still_open) + _SLACK:
            self._heap = [entry for entry in self._heap if still_open.get(entry[2].request_id) is entry[2]]
            heapq.heapify(self._heap)

    @property
    def next_s(self) -> float:
        """The nearest; infinity without one."""
        return self._heap[0][0] if self._heap else float("inf")
