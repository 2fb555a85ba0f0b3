"""How long to wait for the answer of a worker that may have stopped answering.

A worker in a long step is worth waiting for. One that hangs is not, and whoever looks at a server that hangs must not
pay the whole timeout with each question. So what it has owed an answer for already is taken off, until it is heard of
again.
"""

import time
from collections.abc import Callable

__all__ = ["Patience"]


class Patience:
    """least_s: what any question gets. The calls may come from any thread: at worst one waits as without it."""

    def __init__(self, least_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least_s = least_s
        self._clock = clock
        self._owed_s: float | None = None  # when the first question was asked that went without answer

    def left(self, timeout_s: float) -> float:
        """Of `timeout_s` for a question that is asked now."""
        owed_s = self._owed_s
        return timeout_s if owed_s is None else max(self._least_s, timeout_s - (self._clock() - owed_s))

    def unanswered(self, waited_s: float) -> None:
        """A question got no answer within `waited_s`."""
        if self._owed_s is None:
            self._owed_s = self._clock() - waited_s

    def heard(self) -> None:
        """The worker has said something, whatever it was."""
        self._owed_s = None
