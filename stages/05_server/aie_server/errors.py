"""Errors that stage 5 adds to the tree of `aie_tensor.errors`, and how any error looks on the wire.

    AieError                                    (from aie_tensor, through aie_engine)
    ├── InvalidInputError
    │   ├── UnsupportedFieldError  400  exit 2   a known field of the API that this server cannot honour yet
    │   ├── UnauthorizedError      401  exit 2   no API key, or an unknown one
    │   ├── ModelNotFoundError     404  exit 2   no model of this name is served
    │   ├── RequestNotFoundError   404  exit 2   no request of this id is open or remembered
    │   └── RouteError        404, 405  exit 2   no such path, or not with this method
    ├── FramingError           400…505  exit 1   bytes that are not an HTTP request we accept (http/framing.py)
    ├── ServerDrainingError        503  exit 1   shutting down: another replica will answer
    ├── TooManyListenersError      503  exit 1   as many as may listen to the events do so
    ├── DeadlineExceededError      504  exit 1   the request took longer than the gate allows
    ├── GenerationError                 exit 1   the engine ended the request; status and code as the engine says
    └── EnvironmentLacksError
        └── AddressInUseError      500  exit 3   the port is taken, or needs privileges

and those of stage 4 that pass through: `RequestTooLongError` (400, also raised here, before the engine is asked),
`QueueFullError` and `EngineDeadError` (503).
"""

import math
from collections.abc import Mapping
from typing import Final

from aie_engine import AieError, EnvironmentLacksError, ErrorInfo, InvalidInputError

__all__ = [
    "AddressInUseError",
    "DeadlineExceededError",
    "GenerationError",
    "ModelNotFoundError",
    "RequestNotFoundError",
    "RouteError",
    "ServerDrainingError",
    "TooManyListenersError",
    "UnauthorizedError",
    "UnsupportedFieldError",
    "error_object",
    "retry_after_header",
    "v2_error_object",
]


class UnsupportedFieldError(InvalidInputError):
    """The field is part of the API, but ignoring it would change what the answer means, so the request is refused."""

    code = "unsupported_parameter"


class UnauthorizedError(InvalidInputError):
    """No API key came, or one that is not known."""

    status = 401
    code = "invalid_api_key"


class ModelNotFoundError(InvalidInputError):
    """No model of this name is served; the message lists those that are."""

    status = 404
    code = "model_not_found"


class RequestNotFoundError(InvalidInputError):
    """No request of this id is open or remembered, as far as who asks may know."""

    status = 404
    code = "request_not_found"


class RouteError(InvalidInputError):
    """No such route (404), or the route has no such method (405, with `allow`)."""

    status: int  # type: ignore[misc]  # one of two
    code: str  # type: ignore[misc]

    def __init__(self, message: str, *, status: int, code: str, allow: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.allow = allow


class ServerDrainingError(AieError):
    """Shutdown has begun. `retry_after_s` is in seconds."""

    status = 503
    code = "server_draining"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyListenersError(AieError):
    """As many as may listen to the events do so already. `retry_after_s` is in seconds."""

    status = 503
    code = "too_many_listeners"

    def __init__(self, message: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceededError(AieError):
    """The request was not done within the gate's deadline."""

    status = 504
    code = "deadline_exceeded"


class GenerationError(AieError):
    """The engine ended the request with an error: status, code and message are the engine's."""

    status: int  # type: ignore[misc]
    code: str  # type: ignore[misc]

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.status = info.status
        self.code = info.code
        self.retry_after_s = info.retry_after_s
        self.param = info.param


class AddressInUseError(EnvironmentLacksError):
    """The port is taken, or needs privileges that this process lacks."""

    code = "address_in_use"


_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def v2_error_object(error: BaseException) -> dict[str, str | None]:
    """The same as KServe's and Triton's protocols have it: a sentence, and our code beside it."""
    said = error_object(error)["error"]
    return {"error": said["message"], "code": said["code"]}


def error_object(error: BaseException) -> dict[str, dict[str, str | None]]:
    """OpenAI's error object. Errors that are not ours say nothing of their inside: no paths, no names, no values."""
    if not isinstance(error, AieError):
        return {
            "error": {
                "message": "The server failed on this request; its log says why.",
                "type": "server_error",
                "param": None,
                "code": "internal_error",
            }
        }
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": getattr(error, "param", None), "code": error.code}}


def retry_after_header(error: BaseException) -> str | None:
    """Whole seconds, at least one, for errors that say when another attempt may succeed."""
    seconds = getattr(error, "retry_after_s", None)
    return None if seconds is None else str(max(1, math.ceil(seconds)))
