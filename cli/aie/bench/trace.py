"""Traces of real traffic: when requests came, how long they were, and what their prompts had in common.

Two forms, told apart by their first line:

    Mooncake    JSON lines: {"timestamp": 1200 [ms], "input_length": 6755, "output_length": 500, "hash_ids": [0, 7, …]}
                A hash stands for a block of 512 tokens; where two prompts begin with the same hashes they begin alike.
    BurstGPT    CSV with the columns Timestamp [s], Request tokens, Response tokens (and others). A request that failed
                there has no response tokens; it is left out, and counted.

A trace is read only as far as the test will go.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from aie_engine import InvalidInputError

__all__ = ["BLOCK_TOKENS", "Cut", "Trace", "TraceRequest", "read_trace"]

BLOCK_TOKENS = 512  # of Mooncake's hashes
_MOST_REQUESTS = 1_000_000
_MOST_LINE = 1 << 20  # characters of the first: /dev/zero has no second
_MOST_TOKENS = 50_000_000  # of all prompts together, which are made before the clock starts: 300 MB of text
_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. at_s: after the first of the trace."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # which text its prompt consists of, block by block; empty: its own


@dataclass(frozen=True, slots=True)
class Cut:
    """How far a trace is read, and how it is stretched: `time_scale` 2 takes twice as long."""

    requests: int | None = None
    duration_s: float | None = None  # after stretching
    time_scale: float = 1.0
    length_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Trace:
    """What is sent again."""

    requests: tuple[TraceRequest, ...]
    block_tokens: int  # after scaling
    num_failed: int  # requests of the trace that had no answer and were left out

    @property
    def span_s(self) -> float:
        """From the first request to the last."""
        return self.requests[-1].at_s


def read_trace(path: Path, cut: Cut) -> Trace:
    """Raises `InvalidInputError` that names the line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return _read(file, path, cut)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.", param="trace") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path} is no text.", param="trace") from None
    except csv.Error as error:
        raise InvalidInputError(f"{path} is no CSV: {error}.", param="trace") from None


def _read(file: TextIO, path: Path, cut: Cut) -> Trace:
    found: list[TraceRequest] = []
    start_s = last_s = math.nan
    num_failed = 0
    for number, raw in _lines(file, path):
        if raw.at_s < last_s:
            raise _bad(path, number, "is earlier than the line before it; sort the trace by time")
        last_s = raw.at_s
        if math.isnan(start_s):
            start_s = raw.at_s
        at_s = (raw.at_s - start_s) * cut.time_scale
        if cut.duration_s is not None and at_s >= cut.duration_s:
            break
        if raw.output_tokens == 0:
            num_failed += 1
            continue
        found.append(_scaled(raw, at_s, cut.length_scale))
        if len(found) == cut.requests:
            break
        if len(found) > _MOST_REQUESTS:
            raise InvalidInputError(
                f"{path} has more than {_MOST_REQUESTS} requests; cut it with --requests or --duration.", param="trace"
            )
    if not found:
        raise InvalidInputError(f"{path} has no request to send.", param="trace")
    total = sum(one.input_tokens for one in found)
    if total > _MOST_TOKENS:
        raise InvalidInputError(
            f"The prompts of {path} have {total} tokens together, more than {_MOST_TOKENS}; cut it with --requests or "
            "--duration, or shorten them with --length-scale.",
            param="trace",
        )
    return Trace(tuple(found), _length(BLOCK_TOKENS, cut.length_scale), num_failed)


def _scaled(raw: TraceRequest, at_s: float, scale: float) -> TraceRequest:
    return TraceRequest(at_s, _length(raw.input_tokens, scale), _length(raw.output_tokens, scale), raw.blocks)


def _length(tokens: int, scale: float) -> int:
    return max(1, round(tokens * scale))


def _lines(file: TextIO, path: Path) -> Iterator[tuple[int, TraceRequest]]:
    """Line numbers from 1, and what stands there."""
    first = file.readline(_MOST_LINE).removeprefix("\ufeff")
    whole = chain([first], file)
    if first.lstrip().startswith("{"):
        yield from _parsed(enumerate(whole, 1), path, _of_json)
    elif "," in first:
        rows = csv.DictReader(whole)
        missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise _bad(path, 1, f"names no column {missing[0]!r}; a BurstGPT trace has {', '.join(_COLUMNS)}")
        yield from _parsed(((rows.line_num, row) for row in rows), path, _of_row)
    else:
        raise _bad(path, 1, "is neither a JSON object (Mooncake) nor a line of column names (BurstGPT)")


def _parsed(
    lines: Iterator[tuple[int, Any]], path: Path, parse: Callable[[Any], TraceRequest]
) -> Iterator[tuple[int, TraceRequest]]:
    for number, line in lines:
        if isinstance(line, str) and not line.strip():
            continue
        try:
            yield number, parse(line)
        except _MalformedError as error:
            raise _bad(path, number, str(error)) from None


def _of_json(line: str) -> TraceRequest:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise _MalformedError("is no JSON object") from None
    if not isinstance(entry, dict):
        raise _MalformedError("is no JSON object")
    blocks = entry.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(type(one) is int for one in blocks):
        raise _MalformedError("has hash_ids that are no list of integers")
    at_ms = _number(entry, "timestamp")
    return TraceRequest(at_ms / 1e3, _count(entry, "input_length", 1), _count(entry, "output_length", 0), tuple(blocks))


def _of_row(row: dict[str, Any]) -> TraceRequest:
    return TraceRequest(_number(row, "Timestamp"), _count(row, "Request tokens", 1), _count(row, "Response tokens", 0))


def _number(entry: dict[str, Any], name: str) -> float:
    value = entry.get(name)
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _MalformedError(
            f"has {str(value)[:30]!r} as {name}, not a number" if value is not None else f"has no {name}"
        )
    return number


def _count(entry: dict[str, Any], name: str, least: int) -> int:
    number = _number(entry, name)
    if number != int(number) or not least <= number <= 10_000_000:
        raise _MalformedError(f"has {entry[name]!r} as {name}; it must be a whole number from {least} on")
    return int(number)


class _MalformedError(Exception):
    """What is wrong with a line, to stand after its number."""


def _bad(path: Path, number: int, what: str) -> InvalidInputError:
    return InvalidInputError(f"{path} line {number} {what}.", param="trace")
