"""Who has run out of time: a heap, so that a step looks at the nearest deadline only and not at every request.

A request that ends in time leaves a dead entry behind. When dead entries outnumber the living, the heap is rebuilt,
so that it never holds more than about twice the live requests (cost: amortised O(1) per request, O(log n) to add).
"""

from heapq import heapify, heappop, heappush

from aie_scheduler.request import SequenceState, SequenceStatus

__all__ = ["DeadlineHeap"]

REBUILD_SLACK = 64  # below this size a rebuild saves nothing


class DeadlineHeap:
    """Live sequences that have a deadline, nearest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SequenceState]] = []
        self._num_live = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, state: SequenceState) -> None:
        """Watch a sequence, if it has a deadline."""
        if state.deadline_s is not None:
            heappush(self._heap, (state.deadline_s, state.order, state))
            self._num_live += 1

    def forget(self, state: SequenceState) -> None:
        """A sequence has ended (its status is FINISHED already)."""
        if state.deadline_s is None:
            return
        self._num_live -= 1
        if len(self._heap) > 2 * self._num_live + REBUILD_SLACK:
            self._heap = [entry for entry in self._heap if entry[2].status is not SequenceStatus.FINISHED]
            heapify(self._heap)

    def nearest(self) -> float | None:
        """The earliest deadline of a live sequence."""
        while self._heap and self._heap[0][2].status is SequenceStatus.FINISHED:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[SequenceState]:
        """Live sequences whose deadline is now or past. They stay watched until `forget`."""
        due: list[SequenceState] = []
        while self._heap and self._heap[0][0] <= now:
            state = heappop(self._heap)[2]
            if state.status is not SequenceStatus.FINISHED:
                due.append(state)
        return due
