"""The waiting requests of one priority: a line per client, and whose turn it is among them.

Within a line it is first come, first served; between lines the fair share decides. Joining, and leaving from anywhere
(a cancel), are O(1); finding the head is O(log clients), since the heap's keys may be old and are corrected when they
reach the top (`fair.py` says why that suffices). Preempted requests stand before all lines, the last to come first.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from aie_scheduler.fair import FairShare
from aie_scheduler.request import SequenceState

__all__ = ["Lane"]

_Key = tuple[tuple[float, float], int]


class Lane:
    """Requests of equal priority."""

    def __init__(self, fair: FairShare) -> None:
        self.num_passed = 0  # requests of higher priority that went before the present head
        self._fair = fair
        self._front: OrderedDict[str, SequenceState] = OrderedDict()  # preempted; the last is next
        self._lines: dict[tuple[str, str], OrderedDict[str, SequenceState]] = {}
        self._heap: list[tuple[_Key, tuple[str, str]]] = []
        self._in_heap: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._front or self._lines)

    def __iter__(self) -> Iterator[SequenceState]:
        """In the order of service as it stands now: every service moves the clients' turns."""
        yield from reversed(self._front.values())
        for flow in sorted(self._lines, key=self._key):
            yield from self._lines[flow].values()

    def push(self, state: SequenceState) -> None:
        """Join at the end of the client's line."""
        flow = (state.model, state.client)
        line = self._lines.get(flow)
        if line is None:
            line = self._lines[flow] = OrderedDict()
        line[state.request_id] = state
        if flow not in self._in_heap:
            self._in_heap.add(flow)
            heappush(self._heap, (self._key(flow), flow))

    def push_front(self, state: SequenceState) -> None:
        """Come back before everybody."""
        self._front[state.request_id] = state

    def remove(self, state: SequenceState) -> None:
        """Leave from wherever it stands."""
        if self._front.pop(state.request_id, None) is not None:
            return
        flow = (state.model, state.client)
        del self._lines[flow][state.request_id]
        if not self._lines[flow]:
            del self._lines[flow]

    def head(self) -> SequenceState:
        """Whose turn it is. The lane is not empty."""
        if self._front:
            return next(reversed(self._front.values()))
        if len(self._lines) == 1:  # one client: nothing to compare
            return self._first(next(iter(self._lines)))
        while True:
            key, flow = self._heap[0]
            if flow not in self._lines:
                self._in_heap.remove(flow)
                heappop(self._heap)
            elif (now := self._key(flow)) > key:
                heapreplace(self._heap, (now, flow))
            else:
                return self._first(flow)

    def _key(self, flow: tuple[str, str]) -> _Key:
        return self._fair.key(flow), self._first(flow).order

    def _first(self, flow: tuple[str, str]) -> SequenceState:
        return next(iter(self._lines[flow].values()))
