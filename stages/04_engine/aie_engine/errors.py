"""Errors that stage 4 adds to the tree of `aie_tensor.errors`:

    AieError
    ├── EngineDeadError         503  exit 1   the worker is gone or gave up; another attempt later may work
    │   └── WorkerUnavailableError        it is there, and does not read what it is sent
    ├── PredictionFailedError   500  exit 1   the model could not compute this one input
    ├── RequestCancelledError   499  exit 1   who asked for a prediction no longer wants it
    ├── DeadlinePassedError     504  exit 1   a prediction was not there in time
    ├── ConstraintsBusyError    503  exit 1   forms that take very long to compile hold up this one
    ├── EnvironmentLacksError
    │   └── ConstraintsUnavailableError  501  exit 3   the package that compiles constraints is not installed
    └── InvalidInputError
        ├── ConstraintError     400  exit 2   a schema, expression or grammar that is wrong or leads nowhere
        ├── UnsupportedOpError  400  exit 2   the model's graph has an operator that these kernels do not know
        ├── ProcessingError     400  exit 2   processing.toml beside a predictor is not what it must be
        ├── NotFiniteError      422  exit 2   the input is finite, what the model makes of it is not
        ├── ImageError          400  exit 2   bytes that are no image we read, or one that is too large
        └── ModelCheckError     400  exit 2   the model loads, but what it answers is wrong

and those of earlier stages that pass through: `QueueFullError` (503), `RequestTooLongError` (400), loader errors. An
error raised in a worker process is rebuilt in the front process by `rebuild`. What goes wrong with a single request
after it was accepted is never an exception but its last event; with a prediction, what its future raises.
"""

from aie_engine.requests import ErrorInfo
from aie_tensor import AieError, EnvironmentLacksError, InvalidInputError

__all__ = [
    "DeadlinePassedError",
    "EngineDeadError",
    "ModelCheckError",
    "NotFiniteError",
    "PredictionFailedError",
    "RequestCancelledError",
    "UnsupportedOpError",
    "WorkerUnavailableError",
    "error_info",
    "fault_info",
    "rebuild",
]


class EngineDeadError(AieError):
    """No engine takes this request. `retry_after_s` says when one might."""

    status = 503
    code = "engine_died"

    def __init__(self, message: str, *, retry_after_s: float | None = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkerUnavailableError(EngineDeadError):
    """The worker's process stands still: it was stopped, or something in it keeps Python's lock."""

    code = "worker_unavailable"


class PredictionFailedError(AieError):
    """The model raised for one input, also when computed alone. Its batch-mates are not touched."""

    code = "prediction_failed"


class NotFiniteError(InvalidInputError):
    """Every number of the input is finite, but on its way through the model one became NaN or infinite, which no answer
    in JSON can hold: usually values far beyond those that it was trained on."""

    status = 422
    code = "not_finite"


class RequestCancelledError(AieError):
    """`PredictFuture.cancel` was called before the result was there."""

    status = 499
    code = "cancelled"


class DeadlinePassedError(AieError):
    """The request's deadline passed before its result was there."""

    status = 504
    code = "deadline_exceeded"


class UnsupportedOpError(InvalidInputError):
    """An executor meets an operator that it cannot run."""

    code = "unsupported_op"

    def __init__(self, name: str, op: str, kernels: str) -> None:
        super().__init__(f"The {kernels} kernels do not know operator {op!r} of the model's graph, needed at {name!r}.")


class ModelCheckError(InvalidInputError):
    """An engine was started and does not answer as it must; the message says what came instead."""

    code = "model_check_failed"


def error_info(error: AieError) -> ErrorInfo:
    """`error` as it is told to the client of a request."""
    return ErrorInfo(
        error.code, str(error), error.status, getattr(error, "retry_after_s", None), getattr(error, "param", None)
    )


def fault_info(error: Exception) -> ErrorInfo:
    """What the client of a request sees of what went wrong with it: of a foreign exception that it came and which it
    was, not its text."""
    if isinstance(error, AieError):
        return error_info(error)
    return ErrorInfo("engine_fault", f"The engine failed while computing this request ({type(error).__name__}).")


def rebuild(message: str, *, code: str, status: int, exit_code: int) -> AieError:
    """An error of another process, told by its parts: the same message, numbers and branch of the tree, if not the same
    leaf, whose constructor may want what did not travel."""
    branches: dict[int, type[AieError]] = {2: InvalidInputError, 3: EnvironmentLacksError}
    error = branches.get(exit_code, AieError)(message)
    vars(error).update(code=code, status=status, exit_code=exit_code)
    return error
