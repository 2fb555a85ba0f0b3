"""What can go wrong with a constraint. All are errors of one request; no other suffers."""

from aie_tensor import AieError, EnvironmentLacksError, InvalidInputError

__all__ = ["ConstraintError", "ConstraintsBusyError", "ConstraintsUnavailableError"]


class ConstraintError(InvalidInputError):
    """The schema, expression or grammar is wrong, too large, or leads nowhere; the message says what of it."""

    code = "invalid_constraint"


class ConstraintsBusyError(AieError):
    """Nobody had time to compile it: others are being compiled that take very long."""

    status = 503
    code = "constraints_busy"
    retry_after_s = 5.0


class ConstraintsUnavailableError(EnvironmentLacksError):
    """The package that compiles constraints is not installed; the message names the command that does it."""

    status = 501
    code = "structured_output_unavailable"
