"""SIGTERM means: finish what was begun, take nothing new, then go. A second one means: go now.

Order: readiness turns false (so that a load balancer looks elsewhere), new requests get 503, requests in flight go on
until they end or the grace time is over, then the process exits 0. SIGINT (Ctrl-C) is treated alike.
"""

import os
import queue
import signal
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["Drain"]

_POLL_S = 0.05
_QUIET_POLLS = 2  # so many looks in a row must find nothing in flight


class Drain:
    """Waits for the signal in the main thread; everything else runs in threads of its own.

    `begin` is called once when draining begins, `in_flight` gives the number of requests that still run.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        in_flight: Callable[[], int],
        *,
        grace_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        exit_now: Callable[[int], object] = os._exit,
    ) -> None:
        self._begin = begin
        self._in_flight = in_flight
        self._grace_s = grace_s
        self._clock = clock
        self._pause = pause
        self._exit_now = exit_now
        # A `threading.Event` has a lock, and a signal that came while the main thread held it in `wait` would lock that
        # thread out for ever. A SimpleQueue is made for this: its `put` may interrupt its own `get`.
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._num_signals = 0

    def install(self) -> None:
        """Takes over SIGTERM and SIGINT. Call from the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, _frame: FrameType | None = None) -> None:
        """First: begin to drain. Second: leave at once; workers end themselves when their pipe closes."""
        self._num_signals += 1
        if self._num_signals > 1:
            self._exit_now(128 + number)
        self._asked.put(number)

    def wait(self) -> None:
        """Blocks until a signal asks for the end."""
        while True:
            try:
                # A bounded wait: an unbounded one would keep Python from running signal handlers on some platforms.
                self._asked.get(timeout=0.5)
                return
            except queue.Empty:
                pass

    def run(self) -> int:
        """Drains and returns how many requests were still open when the grace time was over (0: a clean end)."""
        self._begin()
        end_s = self._clock() + self._grace_s
        num_quiet = 0
        # One look is not enough: a connection that the kernel has accepted may not have reached the server yet.
        while num_quiet < _QUIET_POLLS and self._clock() < end_s:
            self._pause(_POLL_S)
            num_quiet = 0 if self._in_flight() > 0 else num_quiet + 1
        return self._in_flight()
