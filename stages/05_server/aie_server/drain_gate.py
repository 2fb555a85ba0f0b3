"""The gate that a server was given, and a count of who is inside, so that a drain knows when the last one has left."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from aie_server.errors import ServerDrainingError
from aie_server.gate import AdmitRequest, Gate

__all__ = ["DrainGate"]


class DrainGate:
    """A `Gate`; nobody enters once it is closed."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._changed = threading.Condition()
        self._num_inside = 0
        self.is_closed = False

    @property
    def default_deadline_s(self) -> float | None:
        return self._gate.default_deadline_s

    def ready(self) -> tuple[bool, str]:
        return self._gate.ready()

    def admit(self, request: AdmitRequest) -> "_Inside":
        return _Inside(self, request)

    def enter(self, request: AdmitRequest) -> AbstractContextManager[object]:
        """One more is inside: what is to be entered behind this gate."""
        with self._changed:
            if self.is_closed:
                raise ServerDrainingError("The server is shutting down; another one will answer.")
            self._num_inside += 1
        try:
            place = self._gate.admit(request)
            place.__enter__()
            return place
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """One less."""
        with self._changed:
            self._num_inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.is_closed = True

    def wait_until_empty(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> bool:
        deadline = clock() + timeout_s
        with self._changed:
            while self._num_inside and (remaining_s := deadline - clock()) > 0:
                self._changed.wait(remaining_s)
            return self._num_inside == 0


class _Inside:
    """One request's stay behind both gates."""

    __slots__ = ("_gate", "_place", "_request")

    def __init__(self, gate: DrainGate, request: AdmitRequest) -> None:
        self._gate, self._request = gate, request

    def __enter__(self) -> None:
        self._place = self._gate.enter(self._request)

    def __exit__(self, *error: object) -> None:
        try:
            self._place.__exit__(*error)  # type: ignore[arg-type]
        finally:
            self._gate.leave()
