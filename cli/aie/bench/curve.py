"""Latency against throughput, level by level: as values, and drawn for a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aie.bench.recorded import level_label
from aie_scheduler.plot import scatter

__all__ = ["Point", "curve", "curve_lines"]


@dataclass(frozen=True, slots=True)
class Point:
    """One run of one level. Latencies in milliseconds by name; what there were too few samples for is not there."""

    label: str
    throughput: float  # in the unit that `curve` names
    latencies: Mapping[str, float]


def curve(document: Mapping[str, Any]) -> tuple[str, list[Point]]:
    """The unit of throughput, and a point for each row of a report, from the least load to the most."""
    levels: Sequence[Mapping[str, Any]] = sorted(document["levels"], key=_load)
    if any(level["ttft"]["count"] for level in levels):
        points = [Point(level_label(level), level["output_tokens_per_s"], _generated(level)) for level in levels]
        return "tokens/s", points
    found = []
    for level in levels:
        e2e = level["e2e"] if level["offered_per_s"] is None else level["due_e2e"]
        named = {"E2E P50": e2e["p50"], "E2E P99": e2e["p99"]}
        found.append(Point(level_label(level), level["requests_per_s"], _known(named)))
    return "requests/s", found


def curve_lines(document: Mapping[str, Any]) -> list[str]:
    """Nothing of fewer than two levels: a point is no curve. The knee has a mark of its own."""
    unit, points = curve(document)
    if len({point.label for point in points}) < 2:
        return []
    names = dict.fromkeys(name for point in points for name in point.latencies)
    series = {
        name: [(point.throughput, point.latencies[name]) for point in points if name in point.latencies]
        for name in names
    }
    bend = document.get("knee")
    at_knee = [point for point in points if bend is not None and point.label == bend]
    if at_knee:
        series["knee"] = [(point.throughput, y) for point in at_knee for y in point.latencies.values()]
    return scatter(series, x_label=unit, y_label="latency in ms", width=60, height=10)


def _load(level: Mapping[str, Any]) -> float:
    rate = level["offered_per_s"]
    return float(level["concurrency"] if rate is None else rate)


def _generated(level: Mapping[str, Any]) -> dict[str, float]:
    is_open = level["offered_per_s"] is not None
    ttft, e2e = (level["due_ttft"], level["due_e2e"]) if is_open else (level["ttft"], level["e2e"])
    if level["parts"]:  # a median over all of them would be that of none
        return _known({"TTFT P50": ttft["p50"]})
    return _known({"TTFT P50": ttft["p50"], "E2E P50": e2e["p50"], "E2E P99": e2e["p99"]})


def _known(latencies: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in latencies.items() if value is not None}
