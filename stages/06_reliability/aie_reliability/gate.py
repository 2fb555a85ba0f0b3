"""The door: every request to a model passes here before it costs anything, and is counted until it is answered.

Order of the checks, cheapest and most final first: draining (503), rate of this client (429), room (503). A refusal
takes microseconds, which is what keeps a server alive under an avalanche: work is only begun that can be finished.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from aie_reliability.config import ReliabilityConfig
from aie_reliability.errors import DrainingError, OverloadedError
from aie_reliability.rate_limit import RateLimiter
from aie_server import AdmitRequest

__all__ = ["AdmissionGate"]


class AdmissionGate:
    """Implements the server's `Gate`. Thread-safe; `engines_ready` answers whether an engine would take a request."""

    def __init__(
        self,
        config: ReliabilityConfig,
        *,
        engines_ready: Callable[[], tuple[bool, str]] = lambda: (True, "ready"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._engines_ready = engines_ready
        self._clock = clock
        self._limiter = (
            None
            if config.rate_limit_per_s is None
            else RateLimiter(config.rate_limit_per_s, config.rate_limit_burst, clock=clock)
        )
        self._lock = threading.Lock()
        self._in_flight = {False: 0, True: 0}  # generations, predictions
        self._most = {False: config.max_in_flight, True: config.max_predictions}
        self._draining_since_s: float | None = None
        # Smoothed seconds that a request stays: with Little's law it says when a place will be free.
        self._mean_stay_s = {False: 1.0, True: 1.0}

    @property
    def in_flight(self) -> int:
        """Requests admitted and not yet answered."""
        return sum(self._in_flight.values())

    @property
    def default_deadline_s(self) -> float | None:
        """Seconds that a request may take when it names no deadline of its own."""
        return self._config.deadline_s

    def admit(self, request: AdmitRequest) -> AbstractContextManager[None]:
        """A place for one request, held while the context is open. Raises a `RefusedError`."""
        if self._draining_since_s is not None:
            raise DrainingError(
                "The server is shutting down and takes no new requests.", retry_after_s=self._drain_left_s()
            )
        if self._limiter is not None:
            self._limiter.check(request.client_key)
        kind = request.is_prediction
        with self._lock:
            inside, most = self._in_flight[kind], self._most[kind]
            if most is not None and inside >= most:
                wait_s = self._mean_stay_s[kind] / most
                raise OverloadedError(
                    f"The server already holds {inside} requests, as many as it may. Try again in "
                    f"{max(1, round(wait_s))} s.",
                    retry_after_s=wait_s,
                )
            self._in_flight[kind] = inside + 1
        return _Place(self._leave, self._clock, kind)

    def ready(self) -> tuple[bool, str]:
        """Whether a request would be served now, and if not, why."""
        if self._draining_since_s is not None:
            return False, "draining"
        return self._engines_ready()

    def begin_drain(self) -> None:
        """From now on nothing new is admitted."""
        if self._draining_since_s is None:
            self._draining_since_s = self._clock()

    def _drain_left_s(self) -> float:
        assert self._draining_since_s is not None
        return max(1.0, self._config.grace_s - (self._clock() - self._draining_since_s))

    def _leave(self, stayed_s: float, kind: bool) -> None:
        with self._lock:
            self._in_flight[kind] -= 1
            self._mean_stay_s[kind] += 0.1 * (stayed_s - self._mean_stay_s[kind])


class _Place:
    """One admitted request; leaving twice counts once."""

    __slots__ = ("_clock", "_entered_s", "_kind", "_leave")

    def __init__(self, leave: Callable[[float, bool], None], clock: Callable[[], float], kind: bool) -> None:
        self._leave: Callable[[float, bool], None] | None = leave
        self._kind = kind
        self._clock = clock
        self._entered_s = clock()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._leave is not None:
            self._leave(self._clock() - self._entered_s, self._kind)
            self._leave = None
