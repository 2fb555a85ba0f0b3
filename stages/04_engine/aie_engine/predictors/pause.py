"""How the front's thread waits until there is something to do: asleep, or awake for a while first.

A sleeping thread costs nothing and is slow to wake; one that spins answers at once and burns a core that kernels could
use. `aie_scheduler.waiting` decides which and for how long, this does it.
"""

from collections.abc import Callable
from threading import Condition

from aie_scheduler import WaitStrategy, yield_core

__all__ = ["Pause"]


class Pause:
    """For one thread. `changed` is the front's condition, and `until_s` is read under its lock."""

    def __init__(
        self,
        changed: Condition,
        strategy: WaitStrategy | None,  # None: block, without asking
        *,
        clock: Callable[[], float],
        spin: Callable[[], None] = yield_core,  # between two looks
    ) -> None:
        self.until_s = float("-inf")  # minus infinity: the thread is awake, and looks before it waits
        self._changed = changed
        self._strategy = strategy
        self._clock = clock
        self._spin = spin
        self._is_called = False

    def call(self) -> None:
        """Something is to be done: end the wait. Under the lock."""
        self._is_called = True
        self._changed.notify_all()

    def found(self, num_waiting: Callable[[], int]) -> None:
        """Tell the strategy, if there is one, how many requests wait."""
        if self._strategy is not None:
            self._strategy.found(num_waiting())

    def take(self, next_moment_s: Callable[[float], float]) -> None:
        """Wait until `next_moment_s(now)` or `call`, whichever is first."""
        with self._changed:
            # Asked under the lock: what has changed since the thread last looked must not be slept through.
            now = self._clock()
            self.until_s = next_moment_s(now)
            self._is_called = False
            spin_s = 0.0 if self._strategy is None else self._strategy.spin_s()
            if not spin_s:
                self._sleep(now)
                return
        spin_until_s = min(now + spin_s, self.until_s)
        while not self._is_called and self._clock() < spin_until_s:
            self._spin()
        with self._changed:
            self._sleep(self._clock())

    def _sleep(self, now: float) -> None:
        if not self._is_called and self.until_s > now:
            self._changed.wait(None if self.until_s == float("inf") else self.until_s - now)
        self.until_s = float("-inf")
