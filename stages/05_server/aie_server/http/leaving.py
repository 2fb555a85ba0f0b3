"""Tells every connection at once that the server is leaving, also those whose thread sleeps until a client speaks."""

import os
import threading

__all__ = ["LeaveSignal"]


class LeaveSignal:
    """A pipe into which nothing is ever written: with its writing end closed, its reading end wakes whoever polls it,
    all of them and for ever."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._lock = threading.Lock()
        self._is_closed = False
        self.is_set = False

    def fileno(self) -> int:
        """To be polled for reading."""
        return self._reading

    def set(self) -> None:
        """A second call does nothing."""
        with self._lock:
            if not self.is_set:
                self.is_set = True
                os.close(self._writing)

    def close(self) -> None:
        """After the last who polls it."""
        self.set()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._reading)
