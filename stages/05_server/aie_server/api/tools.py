"""Tool calling: which functions a client offers, whether one must be called, and what follows for prompt and answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aie_engine import ConstraintSpec, InvalidInputError, check_constraint
from aie_server.api.fields import Fields
from aie_server.api.forced_calls import ForcedReader
from aie_server.api.structured import Form
from aie_server.api.tool_calls import CallReader
from aie_server.api.tool_formats import Function, ToolFormat, find_format
from aie_server.config import ServerConfig
from aie_server.errors import UnsupportedFieldError
from aie_server.served import ChatTemplate, Tokenizer

__all__ = ["ToolUse", "parse_tools"]

_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_MODES: Final = ("none", "auto", "required")
_NO_ARGUMENTS: Final[Mapping[str, object]] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that an answer may call."""

    offered: Sequence[Mapping[str, object]]  # as the client describes them, for the chat template
    functions: Sequence[Function]  # that may be called: all, or the one that must be
    is_forced: bool  # the answer is to be calls
    several: bool  # more than one
    format: ToolFormat

    def reader(self) -> CallReader:
        """For one choice."""
        if self.is_forced:
            names = [function.name for function in self.functions]
            return ForcedReader(names, self.format.key, self.format.begin)
        return self.format.reader(self.functions, max_calls=None if self.several else 1)

    def constraint(self, form: Form | None, tokenizer: Tokenizer, config: ServerConfig) -> ConstraintSpec | None:
        """Of the whole answer. `form` is the client's wish for answers in words. Raises `InvalidInputError`, and what
        `check_constraint` raises."""
        grammar = None
        if self.is_forced:
            grammar = self.format.forced(self.functions, tokenizer, several=self.several)
        elif form is not None:
            if form.schema is None:
                raise InvalidInputError(
                    f"{form.spec.param} leaves no room for calls of tools; leave out one of them, or set "
                    "tool_choice to none.",
                    param=form.spec.param,
                )
            grammar = self.format.or_json(self.functions, tokenizer, form.schema, several=self.several)
        elif any(function.is_strict for function in self.functions):
            grammar = self.format.among_words(self.functions, tokenizer, several=self.several)
        if grammar is None:
            return None
        return check_constraint(ConstraintSpec("grammar", grammar, "tools"), max_chars=config.max_constraint_chars)


def parse_tools(fields: Fields, config: ServerConfig, template: ChatTemplate | None) -> ToolUse | None:
    """`tools`, `tool_choice` and `parallel_tool_calls`; None where nothing may be called. Raises `InvalidInputError`
    naming the field."""
    offered = fields.get("tools")
    if offered is not None and not isinstance(offered, list):
        raise fields.error("tools", "a list")
    offered = offered or []
    if len(offered) > config.max_tools:
        raise fields.error("tools", f"a list of at most {config.max_tools} tools, not {len(offered)}")
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(offered)]
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidInputError(
                f"tools[{index}].function.name {name!r} was given before; names must be unique.",
                param=f"tools[{index}].function.name",
            )
    mode = _choice(fields, functions)
    several = fields.flag("parallel_tool_calls", True)
    if mode == "none" or template is None:  # without a template, the prompt itself is refused, which says more
        return None
    if isinstance(mode, Function):
        return ToolUse(offered, [mode], True, False, find_format(template))
    return ToolUse(offered, functions, mode == "required", several, find_format(template))


def _choice(fields: Fields, functions: Sequence[Function]) -> str | Function:
    """A mode, or the function that must be called."""
    value = fields.get("tool_choice")
    if value is None:
        return "auto" if functions else "none"
    if isinstance(value, str):
        if value not in _MODES:
            raise fields.error("tool_choice", f"{', '.join(_MODES)}, or an object that names a function")
        if value == "required" and not functions:
            raise InvalidInputError("tool_choice is required, but there are no tools.", param="tool_choice")
        return value if functions else "none"
    wanted = fields.object("tool_choice")
    assert wanted is not None
    if wanted.text("type") != "function":
        raise UnsupportedFieldError("tool_choice.type must be function.", param="tool_choice.type")
    inner = wanted.object("function")
    name = None if inner is None else inner.text("name")
    for function in functions:
        if function.name == name:
            return function
    there = ", ".join(function.name for function in functions)[:200] or "none"
    raise InvalidInputError(
        f"tool_choice.function.name {(name or '')[:200]!r} is not among the tools; there is {there}.",
        param="tool_choice.function.name",
    )


def _function(tool: object, path: str) -> Function:
    if not isinstance(tool, dict):
        raise InvalidInputError(f"{path} must be an object.", param=path)
    outer = Fields(tool, path)
    if outer.text("type") != "function":
        raise UnsupportedFieldError(
            f"{path}.type must be function; other tools are not supported.", param=f"{path}.type"
        )
    inner = outer.object("function")
    if inner is None:
        raise outer.error("function", "an object with a name")
    name = inner.text("name")
    if name is None or not _NAME.fullmatch(name):
        raise inner.error("name", "1 to 128 letters, digits or any of _ - . : /")
    inner.text("description")
    return Function(name, _schema(inner), inner.flag("strict", False))


def _schema(function: Fields) -> Mapping[str, object]:
    schema = function.get("parameters")
    if schema is None:
        return _NO_ARGUMENTS
    if not isinstance(schema, dict):
        raise function.error("parameters", "a JSON schema, which is an object")
    if schema.get("type", "object") != "object":
        raise function.error("parameters", "a JSON schema of an object: its type must be object")
    return {"type": "object", **schema}
