"""Who has run out of time: a heap, so that a step looks at the nearest deadline only and not at every request.

A request that ends in time leaves a dead entry behind, and with it all that it brought. When dead entries outnumber the
living, the heap is rebuilt, so that it never holds more than about twice the live requests (cost: amortised O(1) per
request, O(log n) to add).
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

__all__ = ["DeadlineHeap", "Timed"]

REBUILD_SLACK = 64  # below this size a rebuild saves nothing


class Timed(Protocol):
    """What may run out of time."""

    @property
    def deadline_s(self) -> float | None: ...  # monotonic; None: it may take for ever


T = TypeVar("T", bound=Timed)


class DeadlineHeap(Generic[T]):
    """Live requests that have a deadline, nearest first; of equals the one that was added first. Not thread-safe.

    is_over: whether a request has ended, in whatever way.
    """

    def __init__(self, is_over: Callable[[T], bool]) -> None:
        self._is_over = is_over
        self._heap: list[tuple[float, int, T]] = []
        self._num_added = 0
        self._num_live = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: T) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline_s is not None:
            heappush(self._heap, (request.deadline_s, self._num_added, request))
            self._num_added += 1
            self._num_live += 1

    def forget(self, request: T) -> None:
        """A request has ended: call it once, when `is_over` says so already."""
        if request.deadline_s is None:
            return
        self._num_live -= 1
        if len(self._heap) > 2 * self._num_live + REBUILD_SLACK:
            self._heap = [entry for entry in self._heap if not self._is_over(entry[2])]
            heapify(self._heap)

    def nearest(self) -> float | None:
        """The earliest deadline of a live request."""
        while self._heap and self._is_over(self._heap[0][2]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[T]:
        """Live requests whose deadline is now or past. They count as live until `forget`."""
        due: list[T] = []
        while self._heap and self._heap[0][0] <= now:
            request = heappop(self._heap)[2]
            if not self._is_over(request):
                due.append(request)
        return due
