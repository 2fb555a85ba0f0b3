"""Clients that begin a call and do not send its message: each would keep a thread for ever."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Cancellable", "SlowSenders"]


class Cancellable(Protocol):
    """A call of the library."""

    def cancel(self) -> object: ...


class SlowSenders:
    """Cancels calls whose message is not whole within `timeout_s`: one thread for all of them.

    It looks eight times in that time, so a call may live an eighth longer.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, Cancellable]] = {}  # the oldest first
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aie-grpc-slow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def watch(self, call: Cancellable) -> Iterator[None]:
        """For as long as the message is waited for."""
        with self._lock:
            self._waiting[id(call)] = (time.monotonic() + self._timeout_s, call)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(id(call), None)

    def _run(self) -> None:
        while not self._stopped.wait(self._timeout_s / 8):
            now_s = time.monotonic()
            with self._lock:
                late = [(key, call) for key, (deadline_s, call) in self._waiting.items() if deadline_s <= now_s]
                for key, _ in late:
                    del self._waiting[key]
            for _, call in late:
                call.cancel()
