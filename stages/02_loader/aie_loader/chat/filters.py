"""Jinja's filters that can build something large from something small, each with a bound; and those left out."""

import json
from collections.abc import Iterable
from typing import Any, NoReturn

import jinja2
from jinja2.filters import do_batch, do_groupby, do_indent, do_int, do_round, do_slice, make_attrgetter
from jinja2.runtime import Context

from aie_loader.chat.meter import meter_of
from aie_loader.errors import ChatTemplateError

__all__ = ["BANNED_FILTERS", "BANNED_METHODS", "BOUNDED_FILTERS", "ITERATING_FILTERS"]

# What pads a text to any width in one call, takes minutes for a long one, or is for debugging; real templates do not
# use them.
BANNED_FILTERS = ("center", "format", "wordwrap", "urlize", "pprint")
# What looks at every entry of what it is given, in a loop that no template wrote.
ITERATING_FILTERS = frozenset({
    "dictsort", "groupby", "join", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort",
    "title", "unique",
})  # fmt: skip
# By type: what pads, multiplies, or leads to bytes, which have all that again.
BANNED_METHODS: dict[type, frozenset[str]] = {
    str: frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill", "translate", "encode"}),
    int: frozenset({"to_bytes", "from_bytes"}),
}
_MAX_INDENT = 16
_MAX_COLUMNS = 10_000
_MAX_DIGITS = 32
_SMALL_CHARS = 1 << 16
_MAX_NUMERAL = 400  # characters of a number in a text


@jinja2.pass_context
def _to_json(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As templates expect: unlike Jinja's own filter it escapes nothing for HTML."""
    _check_number("indents by", indent, 0, _MAX_INDENT)
    if separators is not None and sum(map(len, separators)) > _MAX_INDENT:
        _refuse("separates by", separators)
    meter = meter_of(context)
    options: dict[str, Any] = {"ensure_ascii": ensure_ascii, "separators": separators, "sort_keys": sort_keys}
    if meter.weigh(value) <= _SMALL_CHARS and indent is None:
        return json.dumps(value, **options)
    parts: list[str] = []
    size = 0
    for index, part in enumerate(json.JSONEncoder(indent=indent, **options).iterencode(value)):
        size += len(part)
        meter.limits.check_size(size)
        if index % 1000 == 0:
            meter.step()
        parts.append(part)
    return "".join(parts)


def _indent(text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
    _check_number("indents by", width, 0, _MAX_INDENT)
    return do_indent(text, width, first, blank)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    _check_number("rounds to", precision, -_MAX_DIGITS, _MAX_DIGITS)
    return do_round(value, precision, method)


def _int(value: Any, default: int = 0, base: int = 10) -> int:
    if isinstance(value, str) and len(value) > _MAX_NUMERAL:
        _refuse("reads as a number", value)
    return do_int(value, default, base)


@jinja2.pass_context
def _sum(context: Context, items: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
    meter = meter_of(context)
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    total: Any = start
    for item in items:
        meter.step()
        if not isinstance(item, int | float) or not isinstance(total, int | float):
            raise ChatTemplateError("the chat template adds up what are no numbers")
        total += item
    return total


@jinja2.pass_context
def _batch(context: Context, items: Iterable[Any], linecount: int, fill_with: Any = None) -> Any:
    _check_number("makes rows of", linecount, 1, _MAX_COLUMNS)
    return meter_of(context).weighed(list(do_batch(items, linecount, fill_with)))


@jinja2.pass_context
def _slice(context: Context, items: Any, slices: int, fill_with: Any = None) -> Any:
    _check_number("makes columns of", slices, 1, _MAX_COLUMNS)
    return meter_of(context).weighed(list(do_slice(items, slices, fill_with)))


@jinja2.pass_context
def _group_by(context: Context, items: Any, attribute: Any, default: Any = None, case_sensitive: bool = False) -> Any:
    grouped = do_groupby(context.environment, items, attribute, default, case_sensitive)
    return meter_of(context).weighed(grouped)


def _check_number(what: str, value: object, low: int, high: int) -> None:
    if value is not None and not (isinstance(value, int) and low <= value <= high):
        _refuse(what, value)


def _refuse(what: str, value: object) -> NoReturn:
    raise ChatTemplateError(f"the chat template {what} {value!r:.40}, which is not supported")


BOUNDED_FILTERS = {
    "tojson": _to_json, "indent": _indent, "int": _int, "round": _round, "sum": _sum, "batch": _batch, "slice": _slice,
    "groupby": _group_by,
}  # fmt: skip
