"""What a request asks for, as text: it crosses the pipe to the engine's process, which compiles it."""

import json
from typing import Final, Literal

import msgspec

from aie_engine.constraints.errors import ConstraintError
from aie_engine.constraints.library import require_library

__all__ = ["MAX_CONSTRAINT_CHARS", "ConstraintKind", "ConstraintSpec", "check_constraint"]

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]

MAX_CONSTRAINT_CHARS: Final = 1 << 18  # whatever a server allows; of this length, a grammar takes seconds


class ConstraintSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A form that an answer must have."""

    kind: ConstraintKind
    text: str = ""  # a JSON schema, a regular expression, a JSON list of choices, a Lark or GBNF grammar
    param: str = "response_format"  # the field of the request that asked for it, for messages


def check_constraint(spec: ConstraintSpec, *, max_chars: int = MAX_CONSTRAINT_CHARS) -> ConstraintSpec:
    """The same, if nothing speaks against it that can be seen without compiling it.

    Compiling is the engine's process's business: there it costs its own request time and nobody else. Raises
    `ConstraintError` naming `param`, and `ConstraintsUnavailableError` where nobody could compile it.
    """
    if len(spec.text) > max_chars:
        raise ConstraintError(
            f"{spec.param} has {len(spec.text)} characters; at most {max_chars} are allowed.", param=spec.param
        )
    if spec.kind == "choice":
        choices = json.loads(spec.text)
        if not choices or not all(isinstance(choice, str) and choice for choice in choices):
            raise ConstraintError(f"{spec.param} must be a list of texts, none of them empty.", param=spec.param)
    elif spec.kind != "json_object" and not spec.text.strip():
        raise ConstraintError(f"{spec.param} must not be empty.", param=spec.param)
    require_library()
    return spec
