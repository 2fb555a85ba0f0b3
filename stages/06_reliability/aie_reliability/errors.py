"""Refusals of the guards. Each names when to come back, since a client that knows waits instead of hammering.

AieError                                    (from aie_tensor, through aie_engine)
└── RefusedError               503  exit 1   not now; `retry_after_s` says when to try again
    ├── RateLimitedError       429           this client asked too often
    ├── OverloadedError        503           the server holds as many requests as it may
    ├── CircuitOpenError       503           the engine failed too often; it gets time to recover
    └── DrainingError          503           the server is shutting down and takes nothing new
"""

from typing import ClassVar

from aie_engine import AieError

__all__ = ["CircuitOpenError", "DrainingError", "OverloadedError", "RateLimitedError", "RefusedError"]


class RefusedError(AieError):
    """The request was not started, so trying again later is safe. `retry_after_s` is in seconds."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "refused"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimitedError(RefusedError):
    """The client's token bucket is empty."""

    status = 429
    code = "rate_limit_exceeded"


class OverloadedError(RefusedError):
    """As many requests are in flight as the server may hold."""

    code = "server_overloaded"


class CircuitOpenError(RefusedError):
    """The breaker around the engine is open."""

    code = "circuit_open"


class DrainingError(RefusedError):
    """Shutdown has begun: requests in flight finish, new ones are refused."""

    code = "draining"
