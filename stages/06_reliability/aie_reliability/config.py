"""Settings of the guards, frozen, with the defaults that `aie serve` uses."""

from dataclasses import dataclass

__all__ = ["ReliabilityConfig"]


@dataclass(frozen=True, slots=True)
class ReliabilityConfig:
    """How much the server lets in and how long it lets things take."""

    max_in_flight: int = 320  # generations admitted and not yet answered: running + queued
    max_predictions: int | None = None  # the same of models that answer at once; None: their own queues say
    rate_limit_per_s: float | None = None  # requests per second and client key; None: no limit
    rate_limit_burst: float | None = None  # bucket size; None: one second's worth, at least 1
    deadline_s: float | None = 300.0  # a request older than this is ended with 504; None: never
    breaker_threshold: int = 10  # engine failures in a row that open the circuit
    breaker_recovery_s: float = 30.0  # how long the circuit stays open before one probe
    grace_s: float = 30.0  # after SIGTERM: how long requests in flight may go on
    restart_backoff_s: float = 0.5  # pause before a dead worker is restarted; doubles up to max_restart_backoff_s
    max_restart_backoff_s: float = 30.0
