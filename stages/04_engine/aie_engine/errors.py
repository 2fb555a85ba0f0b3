"""Errors that stage 4 adds to the tree of `aie_tensor.errors`:

    AieError
    ├── EngineDeadError         503  exit 1   the worker is gone or gave up; another attempt later may work
    ├── EngineFaultError        500  exit 1   a step failed; the request is lost, the engine goes on
    ├── InvalidInputError
    │   └── UnsupportedOpError  400  exit 2   the model's graph has an operator that these kernels do not know
    └── RemoteError             (as sent)     an error of the worker process, rebuilt in the front process

and those of earlier stages that pass through: `QueueFullError` (503), `RequestTooLongError` (400), loader errors.
"""

from aie_engine.requests import ErrorInfo
from aie_tensor import AieError, InvalidInputError

__all__ = ["EngineDeadError", "EngineFaultError", "RemoteError", "UnsupportedOpError", "error_info"]


class EngineDeadError(AieError):
    """No engine takes this request. `retry_after_s` says when one might."""

    status = 503
    code = "engine_died"

    def __init__(self, message: str, *, retry_after_s: float | None = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineFaultError(AieError):
    """Computing a step failed: a kernel raised, or the logits of a request were not numbers."""

    code = "engine_fault"


class UnsupportedOpError(InvalidInputError):
    """An executor meets an operator that it cannot run."""

    code = "unsupported_op"

    def __init__(self, name: str, op: str, kernels: str) -> None:
        super().__init__(f"The {kernels} kernels do not know operator {op!r} of the model's graph, needed at {name!r}.")


class RemoteError(AieError):
    """Carries status, exit code and code of an error raised in a worker process, on the instance."""

    status: int  # type: ignore[misc]  # the one error whose kind is decided elsewhere
    exit_code: int  # type: ignore[misc]
    code: str  # type: ignore[misc]

    def __init__(self, message: str, *, code: str, status: int, exit_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.exit_code = exit_code


def error_info(error: BaseException) -> ErrorInfo:
    """What a client may see of `error`: our own errors in full, anything else by its type alone."""
    if isinstance(error, AieError):
        retry_after_s = getattr(error, "retry_after_s", None)
        return ErrorInfo(error.code, str(error), error.status, retry_after_s)
    return ErrorInfo("engine_fault", f"The engine failed while computing this request ({type(error).__name__}).", 500)
