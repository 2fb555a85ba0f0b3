"""Refusals of the guards. Each names when to come back, since a client that knows waits instead of hammering.

AieError                                    (from aie_tensor, through aie_engine)
└── RefusedError               503  exit 1   not now; `retry_after_s` says when to try again
    ├── RateLimitedError       429           this client asked too often
    ├── OverloadedError        503           the server holds as many requests as it may
    ├── CircuitOpenError       503           the engine failed too often; it gets time to recover
    ├── DrainingError          503           the server is shutting down and takes nothing new
    ├── ModelBusyError         409           this model is being loaded already
    └── LoadCancelledError     503           the server shut down before the version was loaded

and reasons why a version of a model was not put to serve, beside those of the loader and the engine:

AieError
├── LoadFailedError            500  exit 1   the system refused, or a fault of ours; the log knows more
├── InvalidInputError
│   └── BrokenVersionError     400  exit 2   it holds no model, or changed while it was loaded
└── EnvironmentLacksError
    └── ModelTooLargeError     507  exit 3   it does not fit beside what serves now
"""

from typing import ClassVar

from aie_engine import AieError, EnvironmentLacksError, InvalidInputError

__all__ = [
    "BrokenVersionError",
    "CircuitOpenError",
    "DrainingError",
    "LoadCancelledError",
    "LoadFailedError",
    "ModelBusyError",
    "ModelTooLargeError",
    "OverloadedError",
    "RateLimitedError",
    "RefusedError",
]


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


class ModelBusyError(RefusedError):
    """A load of this model is on its way; one at a time."""

    status = 409
    code = "model_busy"


class LoadCancelledError(RefusedError):
    """The server shuts down; the version that was being loaded never served."""

    code = "load_cancelled"


class LoadFailedError(AieError):
    """Nothing that the version can be blamed for."""

    code = "load_failed"


class BrokenVersionError(InvalidInputError):
    """There is no model in the version's folder, or its files changed under the loader."""

    code = "broken_version"


class ModelTooLargeError(EnvironmentLacksError):
    """Loading it would take more memory than there is; the message has the figures."""

    status = 507
    code = "model_too_large"
