"""The queue between many producers and the one batching loop: bounded, thread-safe, with a policy for when it is full.

    HTTP threads ──put──► [ front queue ] ──take──► batching loop ──► scheduler (single-threaded) ──► executor

When it is full, a producer is

    reject       told at once (`QueueFullError`): the client may try elsewhere. Load stays bounded, latency too
    block        made to wait for room, until its deadline at most: back-pressure, for producers with no other way
    drop-oldest  let in at the cost of whoever has waited longest, for work that ages, such as frames of a video.
                 `put` returns the one that had to go, and the caller tells its owner

Every item leaves exactly once: by `take`, as somebody's dropped oldest, or by `close`, which returns what is left.

The consumer waits for an item or for a moment (the scheduler's `next_deadline`), whichever is first: first it spins as
long as its strategy says, then it blocks on a condition with exactly that timeout. Nothing polls. The clock and the
condition are arguments, so a test makes time up.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Lock
from typing import Generic, Literal, TypeVar, get_args

from aie_scheduler.errors import QueueClosedError, QueueFullError
from aie_scheduler.queue import DrainRate
from aie_scheduler.waiting import Block, WaitStrategy
from aie_tensor import InvalidInputError

__all__ = ["FrontQueue", "Overflow", "yield_core"]

Overflow = Literal["reject", "block", "drop-oldest"]
T = TypeVar("T")


def yield_core() -> None:
    """Let other threads go first: without it a spinning thread would hold Python's lock for milliseconds."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)


class FrontQueue(Generic[T]):
    """First in, first out: order among those who wait is the scheduler's business, behind it."""

    def __init__(
        self,
        max_queue: int,
        *,
        overflow: Overflow = "reject",
        waiting: WaitStrategy | None = None,
        max_block_s: float = 10.0,  # how long `block` holds a producer that has no deadline
        clock: Callable[[], float] = time.monotonic,
        condition: Callable[[Lock], Condition] = Condition,
        pause: Callable[[], None] = yield_core,  # between two looks of a spin
    ) -> None:
        if max_queue < 1:
            raise InvalidInputError(f"max_queue must be at least 1, not {max_queue}", param="max_queue")
        if overflow not in get_args(Overflow):
            known = ", ".join(get_args(Overflow))
            raise InvalidInputError(f"overflow is {overflow!r}; it must be one of {known}", param="overflow")
        self.max_queue = max_queue
        self.overflow = overflow
        self.num_refused = 0
        self.num_dropped = 0
        self._max_block_s = max_block_s
        self._clock = clock
        self._pause = pause
        self._strategy = waiting if waiting is not None else Block()
        self._items: deque[T] = deque()
        lock = Lock()
        self._lock = lock
        self._arrived = condition(lock)
        self._room = condition(lock)
        self._is_asleep = False  # the consumer is, so that a producer has to signal
        self._is_closed = False
        self._drain_rate = DrainRate()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, *, deadline_s: float | None = None) -> T | None:
        """Let an item in; returns the one that was dropped for it, if any. `deadline_s` is on the queue's clock.

        Raises `QueueFullError` when there is no room (in time) and `QueueClosedError` after `close`; then the item was
        not let in.
        """
        with self._lock:
            self._check_open()
            dropped = None
            if len(self._items) >= self.max_queue:
                if self.overflow == "drop-oldest":
                    dropped = self._items.popleft()
                    self.num_dropped += 1
                elif self.overflow == "reject" or not self._wait_for_room(deadline_s):
                    self.num_refused += 1
                    raise self._full()
            self._items.append(item)
            if self._is_asleep:
                self._arrived.notify()
            return dropped

    def take(self, *, until_s: float | None = None, max_items: int | None = None) -> list[T]:
        """Up to `max_items` items, oldest first, as soon as there is one; none when `until_s` has come, or at the end.

        For one consumer. With `until_s` None it waits for ever, with a moment that is past it only looks.
        """
        spin_until_s = self._spin_until_s(until_s)
        while not self._items and not self._is_closed and self._clock() < spin_until_s:
            self._pause()
        with self._lock:
            while not self._items and not self._is_closed and (until_s is None or self._clock() < until_s):
                self._is_asleep = True
                self._arrived.wait(None if until_s is None else until_s - self._clock())
                self._is_asleep = False
            return self._leave(max_items)

    def remove(self, item: T) -> bool:
        """Take back an item that waits here; False if it is not here (any more). Costs O(length)."""
        with self._lock:
            try:
                self._items.remove(item)
            except ValueError:
                return False
            self._room.notify()
            return True

    def close(self) -> list[T]:
        """Let nobody in any more, wake everybody who waits; returns what was left, in order."""
        with self._lock:
            self._is_closed = True
            left = list(self._items)
            self._items.clear()
            self._arrived.notify_all()
            self._room.notify_all()
            return left

    def _leave(self, max_items: int | None) -> list[T]:
        self._strategy.found(len(self._items))
        num_items = len(self._items) if max_items is None else min(max_items, len(self._items))
        taken = [self._items.popleft() for _ in range(num_items)]
        if taken:
            self._drain_rate.count(num_items)
            self._drain_rate.tick(self._clock())
            self._room.notify(num_items)
        return taken

    def _spin_until_s(self, until_s: float | None) -> float:
        spin_s = self._strategy.spin_s()
        if not spin_s:
            return float("-inf")
        until = self._clock() + spin_s
        return until if until_s is None else min(until, until_s)

    def _wait_for_room(self, deadline_s: float | None) -> bool:
        """Wait until there is room, the deadline has come or patience ends; whether there is room."""
        until_s = self._clock() + self._max_block_s
        if deadline_s is not None:
            until_s = min(until_s, deadline_s)
        while len(self._items) >= self.max_queue:
            remaining_s = until_s - self._clock()
            if remaining_s <= 0:
                return False
            self._room.wait(remaining_s)
            self._check_open()
        return True

    def _check_open(self) -> None:
        if self._is_closed:
            raise QueueClosedError("the queue is closed, since the server is shutting down")

    def _full(self) -> QueueFullError:
        retry_after_s = self._drain_rate.retry_after_s(len(self._items))
        return QueueFullError(
            f"{len(self._items)} requests are waiting already and the queue holds {self.max_queue}; "
            f"try again in {retry_after_s:.0f} s",
            retry_after_s=retry_after_s,
        )
