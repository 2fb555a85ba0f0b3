"""Every error of the framework descends from `AieError`.

The tree (each stage adds its own leaves in its own `errors.py`):

    AieError                       500  exit 1   the root; never raised itself
    ├── InvalidInputError          400  exit 2   the caller's fault: a request, a flag, a broken file
    ├── EnvironmentLacksError      500  exit 3   the machine's fault: no compiler, no network, port in use, disk full
    └── (leaves of each stage)

`assert` is for our own bugs; these are for the caller's and the world's faults. A message is one sentence that says
what is wrong with which thing, and where a remedy exists, a second one that names it.
"""

from typing import ClassVar

__all__ = ["AieError", "EnvironmentLacksError", "InvalidInputError"]


class AieError(Exception):
    """Root of all errors: `status` is for an HTTP client, `exit_code` for a shell, `code` for a program."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal_error"


class InvalidInputError(AieError):
    """The input is wrong and trying again will not help. `param` names the offending field where there is one."""

    status = 400
    exit_code = 2
    code = "invalid_input"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EnvironmentLacksError(AieError):
    """The machine lacks something (compiler, network, disk space, a free port); the message names it and the remedy."""

    status = 500
    exit_code = 3
    code = "environment_lacks"
