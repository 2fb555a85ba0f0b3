"""The waiting room: bounded, in order of priority, shared fairly between clients within a priority.

A queue without a bound turns overload into latency: everybody waits longer and longer for answers nobody wants any
more. So the room has a size, and whoever comes when it is full is told at once (503) and when to come back
(`retry_after_s`).

One lane per priority (`lane.py`): joining, leaving from the middle (a cancel) and going back to the front (a preempted
request) are all O(1). Lanes are few; they are kept in a sorted list.

Not thread-safe, on purpose: the engine's loop is its only user. Blocking a producer until there is room, where that
is wanted, belongs to the producer's side of the pipe (`front.py`).
"""

from bisect import insort
from collections.abc import Iterator

from aie_scheduler.errors import QueueFullError
from aie_scheduler.fair import FairShare
from aie_scheduler.lane import Lane
from aie_scheduler.request import SequenceState

__all__ = ["BoundedQueue", "DrainRate"]

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0


class BoundedQueue:
    """Waiting sequences in order of service: lowest `priority` first, then the client that was served least, then the
    oldest. Nobody starves below: at most `max_bypass` requests go before a waiting one of lower priority.
    """

    def __init__(self, max_queue: int, *, fair: FairShare | None = None, max_bypass: int = 256) -> None:
        self.max_queue = max_queue
        self._fair = fair if fair is not None else FairShare()
        self._max_bypass = max_bypass
        self._lanes: dict[int, Lane] = {}
        self._priorities: list[int] = []  # of the lanes that are not empty, ascending
        self._parked: dict[str, tuple[SequenceState, int]] = {}  # not to be served at present; and `num_passed`
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[SequenceState]:
        yield from (state for state, _ in self._parked.values())
        for priority in self._priorities:
            yield from self._lanes[priority]

    @property
    def num_free(self) -> int:
        """How many more may join."""
        return max(0, self.max_queue - self._num_waiting)

    def check_room(self, retry_after_s: float) -> None:
        """Raises `QueueFullError` when one more would be too many."""
        if self._num_waiting >= self.max_queue:
            raise QueueFullError(
                f"{self._num_waiting} requests are waiting already and the queue holds {self.max_queue}; "
                f"try again in {retry_after_s:.0f} s",
                retry_after_s=retry_after_s,
            )

    def push(self, state: SequenceState) -> None:
        """Join the line of its client within its priority. Look with `check_room` first."""
        self._lane(state.priority).push(state)
        self._num_waiting += 1

    def push_front(self, state: SequenceState) -> None:
        """Come back before everybody of the same priority. No bound: a preempted request is never refused."""
        self._lane(state.priority).push_front(state)
        self._num_waiting += 1

    def head(self) -> SequenceState | None:
        """Who is next, or None."""
        if not self._priorities:
            return None
        return self._lanes[self._next_priority()].head()

    def take(self, state: SequenceState) -> None:
        """Leave to be served: those of lower priority have been passed once more."""
        for priority in self._priorities:
            if priority > state.priority:
                self._lanes[priority].num_passed += 1
        self._lanes[state.priority].num_passed = 0
        self.remove(state)

    def park(self, state: SequenceState) -> None:
        """Step aside: those behind it need not wait. It is still waiting, and is counted."""
        num_passed = self._lanes[state.priority].num_passed
        self.remove(state)
        self._parked[state.request_id] = state, num_passed
        self._num_waiting += 1

    def unpark(self, state: SequenceState) -> None:
        """Back in line, before everybody of the same priority: its turn had come when it stepped aside."""
        _, num_passed = self._parked.pop(state.request_id)
        lane = self._lane(state.priority)
        lane.num_passed = max(lane.num_passed, num_passed)
        lane.push_front(state)

    def first_parked(self) -> SequenceState | None:
        """Who has stood aside longest, or None."""
        return next((state for state, _ in self._parked.values()), None)

    def remove(self, state: SequenceState) -> None:
        """Leave from wherever it stands."""
        if self._parked and self._parked.pop(state.request_id, None) is not None:
            self._num_waiting -= 1
            return
        lane = self._lanes[state.priority]
        lane.remove(state)
        self._num_waiting -= 1
        if not lane:
            del self._lanes[state.priority]
            self._priorities.remove(state.priority)

    def _next_priority(self) -> int:
        for priority in self._priorities[1:]:
            if self._lanes[priority].num_passed >= self._max_bypass:
                return priority
        return self._priorities[0]

    def _lane(self, priority: int) -> Lane:
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = Lane(self._fair)
            insort(self._priorities, priority)
        return lane


class DrainRate:
    """How fast requests leave, smoothed: the basis of `retry_after_s`."""

    def __init__(self, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._since_s: float | None = None
        self._num_done = 0
        self._per_s: float | None = None

    def count(self, num_done: int) -> None:
        """That many requests have ended."""
        self._num_done += num_done

    def restart(self) -> None:
        """Work begins after a pause: idle time says nothing about speed, so the window starts anew."""
        self._since_s, self._num_done = None, 0

    def tick(self, now: float) -> None:
        """Close the window when it is old enough, and blend it in with weight one half."""
        if self._since_s is None:
            self._since_s = now
        elapsed_s = now - self._since_s
        if elapsed_s < self._window_s or self._num_done == 0:
            return
        rate = self._num_done / elapsed_s
        self._per_s = rate if self._per_s is None else (rate + self._per_s) / 2
        self._since_s, self._num_done = now, 0

    def retry_after_s(self, num_waiting: int) -> float:
        """Seconds until `num_waiting` requests will have left at the present rate, within 1 to 60; 1 while unknown."""
        if self._per_s is None:
            return MIN_RETRY_AFTER_S
        return min(max(num_waiting / self._per_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
