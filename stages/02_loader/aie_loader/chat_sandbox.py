"""The Jinja environment of chat templates: what models expect to find there, and limits on time and size.

Jinja's sandbox guards secrets, not resources: nested loops over `range`, or a text doubled forty times, would hold a
thread or all memory. So every loop is metered (steps and time), every operation that can grow a text is bounded, and
output is counted. The meter is put in when the template is parsed, by wrapping each loop's iterable and each `~` in a
filter of ours, so that the limits need neither a thread nor a signal. A single step stays uninterrupted; its cost is
bounded by the size limit.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from aie_loader.errors import ChatTemplateError

__all__ = ["ChatEnvironment", "RenderLimits"]

_METER = "_meter"
# What pads a text to any width in one call; real templates do not use them.
_PADDING_FILTERS = ("center", "format", "wordwrap")
_PADDING_METHODS = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"})
_MAX_INT_BITS = 4096
_MAX_INDENT = 16


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Far above what real templates need: they take one step per message and part, and milliseconds."""

    max_chars: int = 16 << 20  # of the output, and of any text on the way
    max_steps: int = 1_000_000  # loop iterations and calls, all together
    max_seconds: float = 5.0


@dataclass(slots=True)
class _Meter:
    """What one rendering has used up so far."""

    limits: RenderLimits
    clock: Callable[[], float]
    started: float
    steps: int = field(default=0)

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.limits.max_steps:
            raise ChatTemplateError(f"the chat template loops more than {self.limits.max_steps} times in all")
        if self.clock() - self.started > self.limits.max_seconds:
            raise ChatTemplateError(f"the chat template takes longer than {self.limits.max_seconds:g} s")


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it means its body."""

    tags = {"generation"}  # noqa: RUF012 - so declared by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore: they could reach into Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Without a parameter `self`, as in the base class, so that `namespace(self=…)` works.
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Set up as `transformers` does it, because templates are written against that. `now` and `clock`: for tests."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self, limits: RenderLimits, now: Callable[[], datetime], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag])
        self._limits = limits
        self._clock = clock
        for name in _PADDING_FILTERS:
            del self.filters[name]
        self.filters |= {
            "tojson": _to_json,
            "indent": _indent,
            "join": self._join,
            "replace": self._replace,
            "_metered": _metered,
            "_bounded": self._bounded,
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: now().strftime(layout),
            "namespace": _Namespace,
        }

    def variables_of(self, source: str) -> set[str]:
        """Names that the template reads and does not set itself."""
        return find_undeclared_variables(self.parse(source))

    def render_bounded(self, template: jinja2.Template, variables: Mapping[str, object]) -> str:
        """Render, or raise `ChatTemplateError` at the first limit. Errors of the template itself pass through."""
        meter = _Meter(self._limits, self._clock, self._clock())
        pieces: list[str] = []
        size = 0
        for piece in template.generate({**variables, _METER: meter}):
            size += len(piece)
            self._check_size(size)
            pieces.append(piece)
        return "".join(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "_metered")
        _wrap_concatenations(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise ChatTemplateError("the chat template formats text with %, which is not supported")
        self._check_size(_result_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Named as in the base class, so that no keyword of the template's can collide with them. Calls are steps too:
        # a macro that calls itself twice is a loop.
        _meter_of(__context).step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            return __self._replace(owner, *args, **kwargs)
        if isinstance(owner, str) and name == "join" and len(args) == 1:
            return __self._join(args[0], owner)
        return super().call(__context, __obj, *args, **kwargs)

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self._check_size(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, items: Iterable[Any], separator: Any = "", attribute: str | int | None = None) -> str:
        parts: list[str] = []
        size = 0
        for item in items:
            parts.append(str(item if attribute is None else self.getitem(item, attribute)))
            size += len(parts[-1]) + len(str(separator))
            self._check_size(size)
        return str(separator).join(parts)

    def _bounded(self, value: Any) -> Any:
        self._check_size(len(value))
        return value

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_chars:
            raise ChatTemplateError(f"the chat template builds a text of more than {self._limits.max_chars} characters")


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Length of what `left operator right` would build; 0 where it builds a number of sane size."""
    sizes = [len(side) for side in (left, right) if isinstance(side, Sized)]
    counts = [side for side in (left, right) if isinstance(side, int)]
    if operator == "+":
        return sum(sizes)
    if operator == "*" and sizes and counts:
        return sizes[0] * max(counts[0], 0)
    if operator in {"*", "**"} and len(counts) == 2:
        bits = [abs(count).bit_length() for count in counts]
        if (sum(bits) if operator == "*" else bits[0] * abs(counts[1])) > _MAX_INT_BITS:
            raise ChatTemplateError("the chat template computes with numbers of more than 4096 bits")
    return 0


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _wrap_concatenations(node: nodes.Node) -> None:
    """Replace every `a ~ b` by `(a ~ b)|_bounded`, inner ones first."""
    for name, value in node.iter_fields():
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _wrap_concatenations(item)
                    if isinstance(item, nodes.Concat):
                        value[index] = _filtered(item, "_bounded")
        elif isinstance(value, nodes.Node):
            _wrap_concatenations(value)
            if isinstance(value, nodes.Concat):
                setattr(node, name, _filtered(value, "_bounded"))


@jinja2.pass_context
def _metered(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    meter = _meter_of(context)
    for item in items:
        meter.step()
        yield item


def _meter_of(context: Context) -> _Meter:
    meter = context.resolve(_METER)
    assert isinstance(meter, _Meter), meter
    return meter


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As templates expect: unlike Jinja's own filter it escapes nothing for HTML."""
    _check_indent(indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
    _check_indent(width)
    return jinja2.filters.do_indent(text, width, first, blank)


def _check_indent(width: object) -> None:
    if width is not None and not (isinstance(width, int) and 0 <= width <= _MAX_INDENT):
        raise ChatTemplateError(f"the chat template indents by {width!r:.40}; at most {_MAX_INDENT} is supported")
