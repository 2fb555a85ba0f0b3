"""Two reports of `aie bench --json`, level by level: which differences were shown, and which are noise.

Where both sides ran several times (`--repeat`), the runs are the samples: the interval of the difference of their means
(Welch) must leave zero out. Several figures are looked at, so each interval has a confidence of 1 − 5 %/figures
(Bonferroni): when nothing changed, nineteen of twenty comparisons say so, however many levels there are. Of single
runs only medians of latencies can be judged, by the intervals that their own requests give; what differs from run to
run, such as the machine's mood, is in no such interval, and the verdict says that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from aie.bench.recorded import Recorded
from aie.bench.statistics import Interval, chance_of_failures, difference_interval
from aie_engine import InvalidInputError

__all__ = ["Comparison", "Figure", "Verdict", "compare_reports"]

Verdict = Literal["faster", "slower", "no difference shown", "not judged"]

_ALPHA = 0.05  # of wrong alarms, over all figures together
_ALPHA_OF_FAILURES = 0.01  # over all levels

Level = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one level on both sides. change: of the mean, as a part of A's; interval: of that change."""

    level: str
    name: str
    unit: str
    before: float
    after: float
    change: float
    interval: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was compared. runs: the fewest that a level has on either side."""

    figures: tuple[Figure, ...]
    runs: int
    remarks: tuple[str, ...]
    failing: tuple[str, ...] = ()  # levels at which more requests fail than before

    @property
    def verdict(self) -> str:
        """In a few words."""
        of_figures = self._verdict_of_figures()
        if not self.failing:
            return of_figures
        return f"more requests fail at {', '.join(self.failing)}; of those that were answered: {of_figures}"

    def _verdict_of_figures(self) -> str:
        slower, faster = self._with("slower"), self._with("faster")
        if slower and faster:
            return f"slower in {len(slower)}, faster in {len(faster)} of {len(self.figures)} figures"
        return "slower" if slower else "faster" if faster else "no difference shown"

    @property
    def is_slower(self) -> bool:
        return bool(self._with("slower"))

    @property
    def is_worse(self) -> bool:
        return self.is_slower or bool(self.failing)

    def _with(self, verdict: Verdict) -> list[Figure]:
        return [one for one in self.figures if one.verdict == verdict]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one figure is found in a level of a report."""

    name: str
    unit: str
    read: Callable[[Level], float | None]
    interval: Callable[[Level], Interval | None]
    more_is_better: bool = False


def compare_reports(before: Recorded, after: Recorded) -> Comparison:
    """Of levels that both have. Raises `InvalidInputError` where the two are of different tests, or damaged."""
    from aie.bench.compare_search import compare_searches

    try:
        return compare_searches(before, after) if before.is_search else _compared(before, after)
    except (TypeError, ValueError, AttributeError, LookupError):
        raise InvalidInputError(
            f"{before.path} or {after.path} has figures that are none; are the files damaged?"
        ) from None


def _compared(before: Recorded, after: Recorded) -> Comparison:
    shared = before.shared_levels(after)
    kinds = _GENERATED if before.generates else _AT_ONCE
    runs = min(len(levels) for side in (before, after) for levels in map(side.levels.__getitem__, shared))
    pairs = [
        (label, kind, old, new)
        for label in shared
        if not any(level.get("stopped") for side in (before, after) for level in side.levels[label])
        for kind in kinds
        if (old := _values(before.levels[label], kind)) and (new := _values(after.levels[label], kind))
    ]
    confidence = 1.0 - _ALPHA / max(1, len(pairs))
    figures = []
    for label, kind, old, new in pairs:
        if runs > 1:
            interval = difference_interval(old, new, confidence)
        else:
            interval = _of_single(kind, before.levels[label][0], after.levels[label][0])
        figures.append(_figure(label, kind, fmean(old), fmean(new), interval))
    remarks = (*before.remarks("A", shared), *after.remarks("B", shared))
    failing = tuple(
        label
        for label in shared
        if _fails_more(_failures(before.levels[label]), _failures(after.levels[label]), len(shared))
    )
    return Comparison(tuple(figures), runs, remarks, failing)


def _failures(levels: Sequence[Level]) -> tuple[int, int]:
    """(failed, total), over the runs; who hung up as asked is in neither."""
    failed, answered = (int(sum(level[name] for level in levels)) for name in ("failed", "answered"))
    return failed, failed + answered


def _fails_more(before: tuple[int, int], after: tuple[int, int], levels: int) -> bool:
    """Whether chance can hardly explain it. A level at which nothing is answered any more needs no statistics."""
    is_lost = before[0] < before[1] and 0 < after[0] == after[1]
    return is_lost or chance_of_failures(before, after) < _ALPHA_OF_FAILURES / levels


def _values(levels: Sequence[Level], kind: _Kind) -> list[float]:
    return [value for level in levels if (value := kind.read(level)) is not None]


def _figure(label: str, kind: _Kind, before: float, after: float, interval: Interval | None) -> Figure:
    verdict: Verdict = "no difference shown"
    if interval is None:
        verdict = "not judged"
    elif interval[0] > 0.0 or interval[1] < 0.0:
        verdict = "faster" if (interval[0] > 0.0) == kind.more_is_better else "slower"
    part = 1.0 / before if before else 0.0
    relative = None if interval is None else (interval[0] * part, interval[1] * part)
    return Figure(label, kind.name, kind.unit, before, after, (after - before) * part, relative, verdict)


def _of_single(kind: _Kind, before: Level, after: Level) -> Interval | None:
    """Of the difference of two medians, each within its own interval: the widest that both allow."""
    old, new = kind.interval(before), kind.interval(after)
    return None if old is None or new is None else (new[0] - old[1], new[1] - old[0])


def _throughput(name: str, unit: str, key: str) -> _Kind:
    return _Kind(name, unit, lambda level: level.get(key), lambda _: None, more_is_better=True)


def _latency(name: str, key: str) -> _Kind:
    """In the open loop the latency from when a request was due, where there is one."""

    def metric(level: Level) -> Mapping[str, Any]:
        is_open = level.get("offered_per_s") is not None and f"due_{key}" in level
        found: Mapping[str, Any] = level.get(f"due_{key}" if is_open else key) or {}
        return found

    def interval(level: Level) -> Interval | None:
        found = metric(level).get("p50_interval")
        return None if found is None else (float(found[0]), float(found[1]))

    return _Kind(name, "ms", lambda level: metric(level).get("p50"), interval)


_GENERATED = (
    _throughput("answered", "per s", "requests_per_s"),
    # Parts of a mix that answer in one piece have no tokens.
    _Kind("tokens", "per s", lambda level: level.get("output_tokens_per_s") or None, lambda _: None, True),
    _latency("TTFT P50", "ttft"),
    _latency("TPOT P50", "tpot"),
    _latency("E2E P50", "e2e"),
)
_AT_ONCE = (
    _throughput("answered", "per s", "requests_per_s"),
    _latency("E2E P50", "e2e"),
)
