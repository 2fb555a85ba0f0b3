"""The same levels measured several times: means, how far they are to be trusted, how much they vary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from rich import box
from rich.table import Table

from aie.bench.knee import Powered
from aie.bench.report import Row
from aie.bench.statistics import Interval, mean_interval

__all__ = ["AT_ONCE", "GENERATED", "Figures", "Repeated", "figures_of", "repeated_table"]


_Row = TypeVar("_Row", bound=Powered)
Figures = Mapping[str, Callable[[_Row], float | None]]
"""What is followed from run to run, by name."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """One figure of one level over several runs. interval: of the mean, with 95 % confidence; spread: coefficient of
    variation."""

    label: str
    figure: str
    runs: int
    mean: float
    interval: Interval | None
    spread: float

    @classmethod
    def of(cls, rows: Sequence[_Row], figures: "Figures[_Row]") -> "list[Repeated]":
        """Of rows whose levels come again and again."""
        by_label: dict[str, list[_Row]] = {}
        for row in rows:
            by_label.setdefault(row.label, []).append(row)
        made = []
        for label, same in by_label.items():
            for name, figure in figures.items():
                values = [value for row in same if (value := figure(row)) is not None]
                if values:
                    mean, interval = mean_interval(values)
                    spread = stdev(values) / fmean(values) if len(values) > 1 and fmean(values) else 0.0
                    made.append(cls(label, name, len(values), mean, interval, spread))
        return made


GENERATED: Figures[Row] = {
    "answered per s": lambda row: row.requests_per_s,
    "tokens per s": lambda row: row.output_tokens_per_s,
    "TTFT P50 ms": lambda row: row.ttft.p50,
    "TPOT P50 ms": lambda row: row.tpot.p50,
    "E2E P50 ms": lambda row: row.e2e.p50,
}
AT_ONCE: Figures[Row] = {
    "answered per s": lambda row: row.requests_per_s,
    "E2E P50 ms": lambda row: row.e2e.p50,
}


def figures_of(rows: Sequence[Row]) -> Figures[Row]:
    """What is followed of these; of a mix each part's own times."""
    labels = list(dict.fromkeys(label for row in rows for label in row.parts))
    if not labels:
        return GENERATED if any(row.ttft.count for row in rows) else AT_ONCE

    def median(label: str) -> Callable[[Row], float | None]:
        return lambda row: row.parts[label].e2e.p50 if label in row.parts else None

    shared = {"answered per s": GENERATED["answered per s"], "TTFT P50 ms": GENERATED["TTFT P50 ms"]}
    return shared | {f"{label} E2E P50 ms": median(label) for label in labels}


def repeated_table(figures: Sequence[Repeated]) -> Table:
    """Means with their intervals."""
    view = Table(title="Over the runs, mean with 95 % confidence", title_justify="left", box=box.SIMPLE_HEAD,
                 padding=(0, 1), pad_edge=False)  # fmt: skip
    for name in ("level", "figure", "mean", "from", "to", "spread", "runs"):
        view.add_column(name, justify="left" if name in ("level", "figure") else "right", no_wrap=True)
    for one in figures:
        low, high = ("–", "–") if one.interval is None else (f"{one.interval[0]:.1f}", f"{one.interval[1]:.1f}")
        view.add_row(one.label, one.figure, f"{one.mean:.1f}", low, high, f"{one.spread:.1%}", str(one.runs))
    return view
