"""Where more load begins to buy less throughput than it costs in latency."""

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol, TypeVar

__all__ = ["KNEE_RULE", "Powered", "knee", "knee_line"]

KNEE_RULE = "◀ knee: the level of most requests/s per second of median latency (Kleinrock's power)"


class Powered(Protocol):
    """A row of a table: its level, and requests/s per second of median latency there; 0 where nothing was answered."""

    @property
    def label(self) -> str: ...

    @property
    def power(self) -> float: ...


_Row = TypeVar("_Row", bound=Powered)


def knee(rows: Sequence[_Row]) -> _Row | None:
    """The first row of the level of the greatest power; of several runs of a level, their mean counts.

    Power is throughput over response time (L. Kleinrock, Power and deterministic rules of thumb for probabilistic
    problems in computer communications, 1979). None of fewer than two levels: a point is no curve.
    """
    powers: dict[str, list[float]] = {}
    for row in rows:
        powers.setdefault(row.label, []).append(row.power)
    if len(powers) < 2:
        return None
    best = max(powers, key=lambda label: fmean(powers[label]))
    return next(row for row in rows if row.label == best) if fmean(powers[best]) > 0 else None


def knee_line(rows: Sequence[Powered]) -> str | None:
    """The rule, and whether the curve was followed far enough."""
    bend = knee(rows)
    if bend is None:
        return None
    last = "; it is the last level measured, so the curve may go on" if bend.label == rows[-1].label else ""
    return f"{KNEE_RULE}{last}."
