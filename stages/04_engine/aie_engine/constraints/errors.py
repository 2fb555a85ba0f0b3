"""What can go wrong with a constraint. Both are errors of one request; no other suffers."""

from aie_tensor import EnvironmentLacksError, InvalidInputError

__all__ = ["ConstraintError", "ConstraintsUnavailableError"]


class ConstraintError(InvalidInputError):
    """The schema, expression or grammar is wrong, too large, or leads nowhere; the message says what of it."""

    code = "invalid_constraint"


class ConstraintsUnavailableError(EnvironmentLacksError):
    """The package that compiles constraints is not installed; the message names the command that does it."""

    status = 501
    code = "structured_output_unavailable"
