"""Frames on their way to a worker, without anybody waiting for it.

A pipe holds some hundred kilobytes; after that, writing waits until the other end reads. A worker's reader always does,
unless the whole process stands still (it was stopped, or something in it keeps Python's lock). So a thread writes,
which may wait, and whoever sends only adds to a queue. The queue is bounded in bytes, and in time: while the thread has
been in one write for `patience_s`, nothing more is taken but what ends something.
"""

import queue
import threading
import time
from collections.abc import Callable

from aie_engine.errors import WorkerUnavailableError

__all__ = ["FrameSender"]


class FrameSender:
    """write: sends one frame, in its own time; raises OSError when there is nobody to read it, ever. `send` is for any
    thread."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        *,
        max_bytes: int = 8 << 20,
        patience_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        name: str = "aie-sender",
    ) -> None:
        self._write = write
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._clock = clock
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_bytes = 0  # in the queue and in the write under way
        self._writing_since_s: float | None = None
        self._broken: OSError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, data: bytes, *, is_end: bool = False) -> None:
        """Have `data` written after all that was sent before. is_end: of something sent before, and never too much.
        Raises OSError if the other end is known to be gone, and `WorkerUnavailableError` if it does not read."""
        with self._lock:
            if self._broken is not None:
                raise OSError("nobody reads any more") from self._broken
            since_s = self._writing_since_s
            stands_still = since_s is not None and self._clock() - since_s >= self._patience_s
            is_full = self._num_bytes > 0 and self._num_bytes + len(data) > self._max_bytes
            if not is_end and (stands_still or is_full):
                raise WorkerUnavailableError(
                    "The engine's worker does not read its requests: its process stands still, or cannot keep up."
                )
            self._num_bytes += len(data)
            self._queue.put(data)

    def close(self) -> None:
        """Take nothing more, and end the thread, which must not be in a write that never ends."""
        with self._lock:
            self._broken = self._broken or OSError("closed")
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (data := self._queue.get()) is not None:
                self._writing_since_s = self._clock()
                self._write(data)
                self._writing_since_s = None
                with self._lock:
                    self._num_bytes -= len(data)
        except OSError as error:
            with self._lock:
                self._broken, self._writing_since_s = error, None
