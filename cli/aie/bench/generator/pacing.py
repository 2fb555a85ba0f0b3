"""An event loop that wakes when it is told to, to some ten microseconds.

epoll counts milliseconds, so a loop on it wakes up to one too late, and every request of an open loop would be sent so.
select counts microseconds, and an epoll descriptor can itself be selected: for the last moments before a timer the loop
waits with select on that one descriptor. Nothing spins, so a precise schedule costs no core.
"""

import asyncio
import gc
import select
import selectors
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["new_event_loop", "without_collections"]

_COARSE_S = 0.005  # as far from a timer as this, milliseconds will do
_MARGIN_S = 0.002


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Precise where the system has epoll."""
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()

    class PreciseSelector(selectors.EpollSelector):
        """Wakes early from a long wait, and on time from a short one."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is None or timeout <= 0:
                return super().select(timeout)
            if timeout > _COARSE_S:
                return super().select(timeout - _MARGIN_S)  # the loop finds no timer due, and asks again
            select.select([self.fileno()], [], [], timeout)
            return super().select(0)

    return asyncio.SelectorEventLoop(PreciseSelector())


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection inside: what it takes would be somebody's latency."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
