"""Circuit breaker: after repeated failures of the engine, fail fast and let it recover.

    CLOSED ──threshold failures in a row──▶ OPEN ──recovery_s pass──▶ HALF_OPEN ──probe succeeds──▶ CLOSED
                                            ▲                             │
                                            └──── probe fails or hangs ───┘

Why in a row: a share of failures needs a window and a floor of calls to mean anything, and an engine that answers
resets the count. Why the probe has a deadline: a breaker that waits for ever for a hung probe never closes again.
Source: M. Nygard, "Release It!" (2007), ch. 5.
"""

import threading
import time
from collections.abc import Callable
from enum import Enum

from aie_reliability.errors import CircuitOpenError

__all__ = ["BreakerState", "CircuitBreaker", "Permit"]


class BreakerState(Enum):
    """Where the breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Permit:
    """Leave to make one call. Report its outcome exactly once; reports after the first are ignored."""

    __slots__ = ("_breaker", "_is_probe", "_open", "_round")

    def __init__(self, breaker: "CircuitBreaker", is_probe: bool, round_: int) -> None:
        self._breaker = breaker
        self._is_probe = is_probe
        self._round = round_
        self._open = True

    def success(self) -> None:
        """The call was answered."""
        self._settle("success")

    def failure(self) -> None:
        """The callee failed (not: the caller's input was wrong, or the caller went away)."""
        self._settle("failure")

    def abandon(self) -> None:
        """The call says nothing about the callee's health."""
        self._settle("abandon")

    def _settle(self, outcome: str) -> None:
        if self._open:
            self._open = False
            self._breaker._settle(outcome, self._is_probe, self._round)


class CircuitBreaker:
    """Thread-safe; time comes from `clock` (seconds, monotonic)."""

    def __init__(
        self,
        threshold: int = 10,
        recovery_s: float = 30.0,
        *,
        probe_timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert threshold >= 1 and recovery_s > 0 and probe_timeout_s > 0, (threshold, recovery_s, probe_timeout_s)
        self._threshold = threshold
        self._recovery_s = recovery_s
        self._probe_timeout_s = probe_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._opened_s = 0.0
        self._probe_started_s: float | None = None
        # Calls that began before the breaker last changed state must not move it again: their news is old.
        self._round = 0

    @property
    def state(self) -> BreakerState:
        """The state now; OPEN turns into HALF_OPEN by the passing of time alone."""
        with self._lock:
            if self._state is BreakerState.OPEN and self._clock() - self._opened_s >= self._recovery_s:
                return BreakerState.HALF_OPEN
            return self._state

    def acquire(self) -> Permit:
        """Leave for one call, or `CircuitOpenError` saying when the next probe will be let through."""
        with self._lock:
            now = self._clock()
            if self._state is BreakerState.CLOSED:
                return Permit(self, False, self._round)
            if self._state is BreakerState.OPEN:
                left_s = self._recovery_s - (now - self._opened_s)
                if left_s > 0:
                    raise self._refusal(left_s)
                self._enter(BreakerState.HALF_OPEN)
            if self._probe_started_s is not None:
                left_s = self._probe_timeout_s - (now - self._probe_started_s)
                if left_s > 0:
                    raise self._refusal(min(left_s, 1.0))
                self._open(now)
                raise self._refusal(self._recovery_s)
            self._probe_started_s = now
            return Permit(self, True, self._round)

    def _refusal(self, retry_after_s: float) -> CircuitOpenError:
        return CircuitOpenError(
            "The engine has failed repeatedly and is given time to recover. "
            f"Try again in {max(1, round(retry_after_s))} s.",
            retry_after_s=retry_after_s,
        )

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._failures = 0
        self._probe_started_s = None
        self._round += 1

    def _open(self, now: float) -> None:
        self._enter(BreakerState.OPEN)
        self._opened_s = now

    def _settle(self, outcome: str, is_probe: bool, round_: int) -> None:
        with self._lock:
            if round_ != self._round:
                return
            if is_probe:
                self._probe_started_s = None
                if outcome == "success":
                    self._enter(BreakerState.CLOSED)
                elif outcome == "failure":
                    self._open(self._clock())
            elif outcome == "success":
                self._failures = 0
            elif outcome == "failure":
                self._failures += 1
                if self._failures >= self._threshold:
                    self._open(self._clock())
