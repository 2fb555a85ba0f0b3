"""Where more load begins to buy less throughput than it costs in latency."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, TypeVar

__all__ = ["KNEE_RULE", "Powered", "knee", "knee_line"]

KNEE_RULE = "◀ knee: the level of most requests/s per second of median latency (Kleinrock's power)"
_AS_GOOD = 0.95  # of the greatest power: what differs less may be another tomorrow


class Powered(Protocol):
    """A row of a table: its level, and requests/s per second of median latency there; 0 where nothing was answered."""

    @property
    def label(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def concurrency(self) -> int: ...

    @property
    def offered_per_s(self) -> float | None: ...

    @property
    def power(self) -> float: ...

    @property
    def requests_per_s(self) -> float: ...


_Row = TypeVar("_Row", bound=Powered)


@dataclass(frozen=True, slots=True)
class _Mean:
    """Of several runs of a level."""

    label: str
    name: str
    power: float
    per_s: float

    @property
    def latency_s(self) -> float:
        return self.per_s / self.power


def knee(rows: Sequence[_Row]) -> _Row | None:
    """The first row of the level of the greatest power; of several runs of a level, their mean counts.

    Power is throughput over response time (L. Kleinrock, Power and deterministic rules of thumb for probabilistic
    problems in computer communications, 1979). None of fewer than two levels: a point is no curve.
    """
    means = _means(rows)
    if len(means) < 2:
        return None
    best = max(means, key=lambda one: one.power)
    return next(row for row in rows if row.label == best.label) if best.power > 0 else None


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def knee_line(rows: Sequence[Powered]) -> str | None:
    """The rule, what the levels beside it bought and cost, and whether the curve was followed far enough."""
    bend = knee(rows)
    if bend is None:
        return None
    means = _means(rows)
    at = next(index for index, one in enumerate(means) if one.label == bend.label)
    best = means[at]
    told = [f"{KNEE_RULE}: {best.name}, {best.per_s:.4g} requests/s at {_milliseconds(best.latency_s)} ms"]
    if at:
        told.append(f"before it, {_against(means[at - 1], best)}")
    if at + 1 < len(means):
        told.append(f"after it, {_against(means[at + 1], best)}")
    else:
        told.append("it is the last level measured, so the curve may go on")
    if as_good := [one.name for one in means if one is not best and one.power >= _AS_GOOD * best.power]:
        told.append(f"about as good: {', '.join(as_good)}")
    return "; ".join(told) + "."


def _means(rows: Sequence[Powered]) -> list[_Mean]:
    """A row for each level, from the least load to the most."""
    by_label: dict[str, list[Powered]] = {}
    for row in sorted(rows, key=lambda row: row.concurrency if row.offered_per_s is None else row.offered_per_s):
        by_label.setdefault(row.label, []).append(row)
    return [
        _Mean(label, same[0].name, fmean(row.power for row in same), fmean(row.requests_per_s for row in same))
        for label, same in by_label.items()
    ]


def _against(one: _Mean, best: _Mean) -> str:
    if not one.power:
        return f"{one.name}: no answer"
    more, slower = (now / then - 1.0 for now, then in ((one.per_s, best.per_s), (one.latency_s, best.latency_s)))
    return f"{one.name}: {more:+.0%} requests/s, {slower:+.0%} latency"
