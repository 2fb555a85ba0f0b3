"""A report as tables of words, for every format that has tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aie.bench.by_step import STEP_HEADER, step_cells
from aie.bench.header import header_lines
from aie.bench.recorded import level_label

__all__ = ["Section", "facts", "sections"]

Level = Mapping[str, Any]
Column = tuple[str, Callable[[Level], str]]

_LATENCIES = {
    "ttfr": "TTFR", "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "due_ttft": "TTFT from schedule",
    "due_e2e": "E2E from schedule", "lag": "sent late by",
}  # fmt: skip
_DEFINITIONS = (
    "TTFR: to the first byte of the answer; TTFT: to the first text; ITL: between two events with text; TPOT: mean "
    "time per token after the first; E2E: to the last byte. All of answered requests, from sending; from schedule: "
    "from when the request was due.",
    "P90 and P99 are given where there are enough samples to speak of them (64 and 662); the bound is what the true "
    "P99 stays below with 99 % confidence.",
)


@dataclass(frozen=True, slots=True)
class Section:
    """One table; the first column names the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def sections(document: Mapping[str, Any]) -> list[Section]:
    """What went through, how long it took, part by part of a mix, and what server and machine told."""
    levels: Sequence[Level] = document["levels"]
    if not levels:
        return []
    columns = _GENERATED if any(level["ttft"]["count"] for level in levels) else _AT_ONCE
    found = [_table("What went through", levels, columns, document.get("knee"))]
    if any(level.get("parts") for level in levels):
        found.append(_parts(levels))
    found.append(_latencies(levels))
    if any(level.get("steps") for level in levels):
        found.append(_steps(levels))
    if document.get("find_max"):
        found.append(_probes(document["find_max"]))
    if any(level.get("server") for level in levels):
        found.append(_server(levels))
    if any(level.get("energy") for level in levels):
        found.append(_energy(levels))
    return found


def facts(document: Mapping[str, Any]) -> list[str]:
    """Sentences: what was measured, with what, and what to make of it."""
    lengths = f", {document['lengths']} lengths" if document["lengths"] else ""
    told = [f"{document['model']} at {document['url']}, {document['endpoint']}{lengths}."]
    told.append(" · ".join(f"{name} {value}" for name, value in document["context"].items()))
    if document.get("header"):
        told += header_lines(document["header"])
    if document.get("test"):
        told.append("Asked: " + ", ".join(f"{name} {value}" for name, value in document["test"].items() if value))
    if not document["complete"]:
        part = "the last level is of a part of its requests" if document["levels"] else "before any answer"
        told.append(f"Interrupted: {part}.")
    if document.get("verdict"):
        told.append(document["verdict"])
    told += document.get("notes", ())
    return [*told, *_DEFINITIONS]


def _table(title: str, levels: Sequence[Level], columns: Sequence[Column], knee: object) -> Section:
    rows = []
    for level in levels:
        mark = " (knee)" if level_label(level) == knee else ""
        mark += " (stopped early)" if level.get("stopped") else ""
        rows.append([level_label(level) + mark, *(cell(level) for _, cell in columns)])
    return Section(title, ["level", *(name for name, _ in columns)], rows)


def _latencies(levels: Sequence[Level]) -> Section:
    rows = []
    for level in levels:
        for key, name in _LATENCIES.items():
            found = level[key]
            if found["count"]:
                values = [_number(found[part]) for part in ("mean", "p50", "p90", "p99", "p99_bound", "max")]
                rows.append([level_label(level), name, *values, str(found["count"])])
    header = ["level", "metric", "mean", "P50", "P90", "P99", "P99 bound", "largest", "samples"]
    return Section("How long it took, in ms", header, rows)


def _parts(levels: Sequence[Level]) -> Section:
    rows = [
        [level_label(level), label, *(cell(part) for _, cell in _PART)]
        for level in levels
        for label, part in level["parts"].items()
    ]
    return Section("By part", ["level", "part", *(name for name, _ in _PART)], rows)


def _steps(levels: Sequence[Level]) -> Section:
    rows = [[level_label(level), *step_cells(step)] for level in levels for step in level.get("steps") or ()]
    return Section("As the rate changed; times in ms, from when requests were due", ["level", *STEP_HEADER], rows)


def _probes(search: Mapping[str, Any]) -> Section:
    """In the order in which they were tried."""
    limits = list(dict.fromkeys(limit for probe in search["probes"] for limit in probe["measured_ms"]))
    rows = []
    for probe in search["probes"]:
        values = [probe["measured_ms"].get(limit) for limit in limits]
        cells = [f"{probe['rate']:.3g}", "broken" if probe["broken"] else "held"]
        cells += ["no answer" if value is None else _number(value) for value in values]
        cells += [str(probe["requests"]), _number(probe["seconds"]), "yes" if probe["stopped_early"] else ""]
        rows.append([*cells, "; ".join(probe["broken"])])
    header = [search["unit"], "promise", *(f"{limit}, ms" for limit in limits), "requests", "seconds", "stopped early",
              "why broken"]  # fmt: skip
    return Section("Probes of the search", header, rows)


def _energy(levels: Sequence[Level]) -> Section:
    keys = ("watts", "j_per_request", "j_per_token")
    rows = []
    for level in levels:
        found = level["energy"] or {"joules": {}}
        by_source = ", ".join(f"{source} {joules:.0f}" for source, joules in found["joules"].items())
        rows.append([level_label(level), *(_number(found.get(key)) for key in keys), by_source or "–"])
    return Section("Energy", ["level", "W", "J per answered request", "J per token", "J by source"], rows)


def _server(levels: Sequence[Level]) -> Section:
    names = list(dict.fromkeys(name for level in levels for name in (level.get("server") or {})))
    rows = [
        [level_label(level), *(_plain((level.get("server") or {}).get(name)) for name in names)] for level in levels
    ]
    return Section("What the server counted meanwhile", ["level", *(name.replace("_", " ") for name in names)], rows)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items()) or "–"
    return _number(value) if isinstance(value, float) else "–" if value is None else str(value)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _megabytes(level: Level) -> str:
    found = level["peak_rss_bytes"]
    return "–" if found is None else f"{found / 1e6:.0f}"


def _end(kind: str) -> Callable[[Level], str]:
    return lambda level: str(level["ends"][kind])


def _steady(level: Level) -> str:
    """Tokens per second without ramp and drain, and from when to when that was."""
    window = level.get("steady")
    if level["steady_tokens_per_s"] is None or not window:
        return _number(level["steady_tokens_per_s"])
    return f"{_number(level['steady_tokens_per_s'])} ({window['begin_s']:.1f} to {window['end_s']:.1f} s)"


def _good(level: Level) -> str:
    return "–" if level["good"] is None else f"{level['good'] / level['wall_s']:.2f}"


_ENDS: Sequence[Column] = (
    ("answered", lambda level: f"{level['answered']}/{level['requests']}"),
    ("refused", _end("rejected")),
    ("late", _end("timed out")),
    ("cut", _end("cut")),
    ("cancelled", _end("cancelled")),
    ("open at the stop", _end("stopped")),
    ("error", _end("failed")),
    ("client-bound", lambda level: "yes" if level.get("client_bound") else "no"),
)
_GENERATED: Sequence[Column] = (
    ("answered per s", lambda level: _number(level["requests_per_s"])),
    ("good per s", _good),
    ("tokens per s", lambda level: _number(level["output_tokens_per_s"])),
    ("steady", _steady),
    *_ENDS,
    ("memory MB", _megabytes),
    ("mean batch", lambda level: _number(level["mean_batch"])),
)
_AT_ONCE: Sequence[Column] = (
    ("answered per s", lambda level: _number(level["requests_per_s"])),
    ("good per s", _good),
    *_ENDS,
    ("KB per s", lambda level: _number((level["bytes_per_s"] or 0.0) / 1e3)),
    ("memory MB", _megabytes),
    ("mean batch", lambda level: _number(level["mean_batch"])),
)


def _latency(key: str, part: str) -> Callable[[Level], str]:
    """In the open loop from when requests were due."""

    def cell(level: Level) -> str:
        is_open = level["offered_per_s"] is not None and f"due_{key}" in level
        return _number(level[f"due_{key}" if is_open else key][part])

    return cell


_PART: Sequence[Column] = (
    ("answered per s", lambda part: _number(part["requests_per_s"])),
    ("good per s", _good),
    ("answered", lambda part: f"{part['answered']}/{part['requests']}"),
    ("failed", lambda part: str(part["failed"])),
    ("TTFT P50", _latency("ttft", "p50")),
    ("P99", _latency("ttft", "p99")),
    ("TPOT P50", _latency("tpot", "p50")),
    ("P99", _latency("tpot", "p99")),
    ("E2E P50", _latency("e2e", "p50")),
    ("P90", _latency("e2e", "p90")),
    ("P99", _latency("e2e", "p99")),
    ("mean batch", lambda part: _number(part["mean_batch"])),
)
