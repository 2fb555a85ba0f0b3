"""What is done with requests after they were answered, by a thread of its own, so that no answer waits for it.

What comes faster than it can be worked off is counted instead.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["EndedRequests"]

_MAX_QUEUED = 64
_MAX_TOGETHER = 32

_log = logging.getLogger("aie.server")
_T = TypeVar("_T")


class EndedRequests(Generic[_T]):
    """`note` from any thread; `close` ends the one that works. handle: takes those that have come since the last time,
    a few at once, since one question to an engine serves them all; and how many were missed before them."""

    def __init__(
        self, handle: Callable[[Sequence[_T], int], None], *, name: str, max_queued: int = _MAX_QUEUED
    ) -> None:
        self._handle = handle
        self._name = name
        self._queue: queue.Queue[_T | None] = queue.Queue(max_queued)
        self._num_missed = 0
        self._thread = threading.Thread(target=self._run, name=f"aie-{name}", daemon=True)
        self._thread.start()

    def note(self, ended: _T) -> None:
        """Never waits."""
        try:
            self._queue.put_nowait(ended)
        except queue.Full:
            self._num_missed += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Works off what is queued; a second call does nothing."""
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            some = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while some[-1] is not None and len(some) < _MAX_TOGETHER:
                    some.append(self._queue.get_nowait())
            ended = [one for one in some if one is not None]
            is_over = some[-1] is None
            missed, self._num_missed = self._num_missed, 0
            try:
                if ended:
                    self._handle(ended, missed)
            except Exception:  # the thread must not end for one of them
                _log.exception("%s: a request could not be dealt with", self._name)
