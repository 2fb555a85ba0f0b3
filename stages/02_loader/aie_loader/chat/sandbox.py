"""The Jinja environment of chat templates: what models expect to find there, and limits on time and size.

Jinja's sandbox guards secrets, not resources: nested loops over `range`, or a text doubled forty times, would hold a
thread or all memory. So every loop is metered (steps and time), every operation that can grow a text or a list is
bounded, and output is counted. The meter is put in when the template is parsed, by wrapping each loop's iterable, each
`~` and each list that is written out in a filter of ours, so that the limits need neither a thread nor a signal. A
single step stays uninterrupted; its cost is bounded by the size limit. What filters, calls and slices return counts
towards a limit on all that is built, for a template may keep it; filters that iterate are loops.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
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

from aie_loader.chat.filters import BANNED_FILTERS, BANNED_METHODS, BOUNDED_FILTERS, ITERATING_FILTERS
from aie_loader.chat.meter import METER, Meter, RenderLimits, meter_of, result_size
from aie_loader.errors import ChatTemplateError

__all__ = ["ChatEnvironment", "RenderLimits"]

_MAX_LAYOUT = 1000  # characters of a date's description


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

    def __repr__(self) -> str:
        return "<namespace>"  # not what it holds, which may be itself


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
        for name in BANNED_FILTERS:
            del self.filters[name]
        self.filters |= {
            **BOUNDED_FILTERS,
            "join": self._join,
            "replace": self._replace,
            "_metered": _metered,
            "_built": _built,
            "_counted": _counted,
        }
        del self.globals["lipsum"]  # any number of paragraphs of placeholder text
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: _strftime(now(), layout),
            "namespace": _Namespace,
        }

    def variables_of(self, source: str) -> set[str]:
        """Names that the template reads and does not set itself."""
        return find_undeclared_variables(self.parse(source))

    def render_bounded(self, template: jinja2.Template, variables: Mapping[str, object]) -> str:
        """Render, or raise `ChatTemplateError` at the first limit. Errors of the template itself pass through."""
        meter = Meter(self._limits, self._clock, self._clock())
        pieces: list[str] = []
        size = 0
        for piece in template.generate({**variables, METER: meter}):
            size += len(piece)
            self._limits.check_size(size)
            pieces.append(piece)
        return "".join(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "_metered")
        _wrap_growing(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if any(isinstance(obj, kind) and attr in banned for kind, banned in BANNED_METHODS.items()):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise ChatTemplateError("the chat template formats text with %, which is not supported")
        meter = meter_of(context)
        self._limits.check_size(result_size(meter, operator, left, right))
        return meter.built(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Named as in the base class, so that no keyword of the template's can collide with them. Calls are steps too:
        # a macro that calls itself twice is a loop.
        meter = meter_of(__context)
        meter.step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            return meter.built(__self._replace(owner, *args, **kwargs))
        if isinstance(owner, str) and name == "join" and len(args) == 1:
            return meter.built(__self._join(_counted(__context, args[0]), owner))
        result = super().call(__context, __obj, *args, **kwargs)
        return meter.weighed(result) if isinstance(result, MappingView) else meter.built(result)

    def concat(self, pieces: Iterable[str]) -> str:
        """Joins what a macro or a block of the template has put out."""
        parts = list(pieces)
        self._limits.check_size(sum(map(len, parts)))
        return "".join(parts)

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self._limits.check_size(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, items: Iterable[Any], separator: Any = "", attribute: str | int | None = None) -> str:
        parts: list[str] = []
        size = 0
        for item in items:
            parts.append(str(item if attribute is None else self.getitem(item, attribute)))
            size += len(parts[-1]) + len(str(separator))
            self._limits.check_size(size)
        return str(separator).join(parts)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _wrap_growing(node: nodes.Node) -> None:
    """Put `…|_built` behind whatever can build something: `a ~ b`, `[a, b]`, `a[1:]`, `a|upper`; inner ones first."""
    for name, value in node.iter_fields():
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _wrap_growing(item)
                    value[index] = _wrapped(item)
        elif isinstance(value, nodes.Node):
            _wrap_growing(value)
            setattr(node, name, _wrapped(value))


def _wrapped(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Filter):
        if node.name.startswith("_"):
            return node  # ours
        if node.name in ITERATING_FILTERS and node.node is not None:
            node.node = _filtered(node.node, "_counted")
        return _filtered(node, "_built")
    is_display = isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load")
    is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    return _filtered(node, "_built") if is_display or is_slice or isinstance(node, nodes.Concat) else node


@jinja2.pass_context
def _metered(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    meter = meter_of(context)
    for item in items:
        meter.step()
        yield item


@jinja2.pass_context
def _counted(context: Context, items: Any) -> Any:
    """`items` for a filter that iterates: each is a step."""
    if isinstance(items, str | list | tuple | dict | range | MappingView):
        meter_of(context).step(len(items))
        return items
    return _metered(context, items) if isinstance(items, Iterator) else items


@jinja2.pass_context
def _built(context: Context, value: Any) -> Any:
    return meter_of(context).built(value)


def _strftime(moment: datetime, layout: str) -> str:
    if len(layout) > _MAX_LAYOUT:
        raise ChatTemplateError(f"the chat template lays out a date with more than {_MAX_LAYOUT} characters")
    return moment.strftime(layout)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
