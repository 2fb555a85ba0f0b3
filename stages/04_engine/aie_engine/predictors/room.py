"""What becomes of a request that finds the queue full.

    reject       told at once (`QueueFullError`)
    block        its submitter waits for room: until the request's deadline, `block_timeout_s` at most, then it is told
    drop-oldest  let in at the cost of whoever has waited longest, whose future raises `QueueFullError`

`aie_scheduler.FrontQueue` has the same three for a queue that stands before a batcher's. Here the batcher's own is the
only queue, so that a request that waits for room has no place in any line, and one that has a place can join a batch.
"""

from collections.abc import Callable, Iterable
from threading import Condition

from aie_engine.predictors.books import Member
from aie_scheduler import Overflow, QueueFullError
from aie_tensor import AieError

__all__ = ["Room", "dropped_error", "oldest_waiting"]


class Room:
    """Where submitters wait to be let in. Used under the front's lock, which `freed` shares."""

    def __init__(
        self, policy: Overflow, block_timeout_s: float, *, freed: Condition, clock: Callable[[], float]
    ) -> None:
        self.policy = policy
        self._block_timeout_s = block_timeout_s
        self._freed = freed
        self._clock = clock
        self._num_blocked = 0

    def wait(self, full: QueueFullError, deadline_s: float | None, enter: Callable[[float], None]) -> float:
        """Try `enter(now)` whenever somebody has left, until it no longer raises `QueueFullError`; returns that `now`.

        Raises the last `QueueFullError`, at first `full`, when the time is up, and at once whatever else `enter` does.
        """
        until_s = self._clock() + self._block_timeout_s
        if deadline_s is not None:
            until_s = min(until_s, deadline_s)
        self._num_blocked += 1
        try:
            while (remaining_s := until_s - self._clock()) > 0:
                self._freed.wait(remaining_s)
                now = self._clock()
                try:
                    enter(now)
                except QueueFullError as error:  # somebody was quicker, or nobody has left
                    full = error
                else:
                    return now
            raise full
        except AieError:
            self._freed.notify()  # the room that woke this one is another's
            raise
        finally:
            self._num_blocked -= 1

    def left(self, num_members: int) -> None:
        """So many have left the queue."""
        if self._num_blocked:
            self._freed.notify(num_members)

    def close(self) -> None:
        """Wake all: `enter` will tell them."""
        self._freed.notify_all()


def oldest_waiting(members: Iterable[Member]) -> Member:
    """The first that is in no batch yet. `members`: all that are open, oldest first."""
    return next(member for member in members if member.is_waiting)


def dropped_error(member: Member, full: QueueFullError) -> QueueFullError:
    """What the one who had to go is told."""
    return QueueFullError(
        f"{member.request_id} had waited longest in a full queue and gave its place to a newer request; "
        f"try again in {full.retry_after_s:.0f} s",
        retry_after_s=full.retry_after_s,
    )
