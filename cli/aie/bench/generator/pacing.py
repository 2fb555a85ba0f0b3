"""An event loop that wakes when it is told to, to some ten microseconds, and reads sockets without detours.

epoll counts milliseconds, so a loop on it wakes up to one too late, and every request of an open loop would be sent so.
select counts microseconds, and an epoll descriptor can itself be selected: for the last moments before a timer the loop
waits with select on that one descriptor. Nothing spins, so a precise schedule costs no core.

Between a socket that is readable and its callback asyncio puts a handle, a queue and a context, which takes longer than
to read and take apart an event. So sockets of requests are watched here, in an epoll of their own in which asyncio's is
one descriptor among others, and their callbacks are called at once.
"""

import asyncio
import gc
import select
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Watch", "new_event_loop", "watch_of", "without_collections"]

_COARSE_S = 0.005  # as far from a timer as this, milliseconds will do
_MARGIN_S = 0.002

Readable = Callable[[], bool]
"""Reads; True where somebody waits in the event loop for what was read."""


class Watch(Protocol):
    """Calls back when a socket, by its number, can be read or written."""

    def reads(self, number: int, readable: Readable) -> None: ...

    def writes(self, number: int, writable: Callable[[], None]) -> None:
        """Besides: the socket is watched already."""

    def writes_no_more(self, number: int) -> None: ...

    def forget(self, number: int) -> None:
        """Before it is closed."""


class _LoopWatch:
    """By the event loop's own means."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def reads(self, number: int, readable: Readable) -> None:
        self._loop.add_reader(number, readable)

    def writes(self, number: int, writable: Callable[[], None]) -> None:
        self._loop.add_writer(number, writable)

    def writes_no_more(self, number: int) -> None:
        self._loop.remove_writer(number)

    def forget(self, number: int) -> None:
        self._loop.remove_reader(number)


if sys.platform == "linux":

    class _PreciseSelector(selectors.EpollSelector):
        """asyncio's selector, which is also the watch. Wakes early from a long wait, and on time from a short one."""

        def __init__(self) -> None:
            super().__init__()
            self._all = select.epoll()
            self._own = self.fileno()
            self._all.register(self._own, select.EPOLLIN)
            self._readers: dict[int, Readable] = {}
            self._writers: dict[int, Callable[[], None]] = {}

        def close(self) -> None:
            self._all.close()
            super().close()

        def reads(self, number: int, readable: Readable) -> None:
            self._all.register(number, select.EPOLLIN)
            self._readers[number] = readable

        def writes(self, number: int, writable: Callable[[], None]) -> None:
            self._all.modify(number, select.EPOLLIN | select.EPOLLOUT)
            self._writers[number] = writable

        def writes_no_more(self, number: int) -> None:
            self._all.modify(number, select.EPOLLIN)
            del self._writers[number]

        def forget(self, number: int) -> None:
            self._all.unregister(number)
            del self._readers[number]
            self._writers.pop(number, None)

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Does not return for what it has called back itself, unless somebody waits for that."""
            until_s = None if timeout is None else time.perf_counter() + timeout
            while True:
                left_s = None if until_s is None else until_s - time.perf_counter()
                is_awaited = has_others = False
                for number, mask in self._poll(left_s):
                    if mask == select.EPOLLIN and (readable := self._readers.get(number)) is not None:
                        is_awaited |= readable()
                    elif number == self._own:
                        has_others = True
                    else:
                        is_awaited |= self._call(number, mask)
                if has_others:
                    return super().select(0)
                if is_awaited or (left_s is not None and left_s <= _MARGIN_S):
                    return []

        def _call(self, number: int, mask: int) -> bool:
            is_awaited = False
            if mask & select.EPOLLOUT and (writable := self._writers.get(number)) is not None:
                writable()
                is_awaited = True
            # One event may bring about that a socket of another is closed.
            if mask & ~select.EPOLLOUT and (readable := self._readers.get(number)) is not None:
                is_awaited |= readable()
            return is_awaited

        def _poll(self, left_s: float | None) -> list[tuple[int, int]]:
            if left_s is None:
                return self._all.poll()
            if left_s > _COARSE_S:
                return self._all.poll(left_s - _MARGIN_S)
            if left_s > 0:
                select.select([self._all], [], [], left_s)
            return self._all.poll(0)

    class _PreciseLoop(asyncio.SelectorEventLoop):
        def __init__(self) -> None:
            self.watch = _PreciseSelector()
            super().__init__(self.watch)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Precise where the system has epoll."""
    return _PreciseLoop() if sys.platform == "linux" else asyncio.new_event_loop()


def watch_of(loop: asyncio.AbstractEventLoop) -> Watch:
    """How sockets are watched in a loop of any kind."""
    if sys.platform == "linux" and isinstance(loop, _PreciseLoop):
        return loop.watch
    return _LoopWatch(loop)


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
