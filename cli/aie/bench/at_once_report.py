"""From outcomes to the table of models that answer at once, with the knee of the curve marked."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.table import Table

from aie.bench.at_once import AtOnceResult
from aie.bench.counters import Window
from aie.bench.knee import knee, knee_line
from aie.bench.statistics import Interval, median_interval, percentile

__all__ = ["AtOnceRow", "at_once_table", "details", "summarize_at_once"]

_FEW = 100  # answers, of which the 99th percentile is the largest
_BOUND_BY_CLIENT = 0.9  # of a core


@dataclass(frozen=True, slots=True)
class AtOnceRow:
    """One concurrency level. Times in milliseconds, from the moment of sending, of the requests that were answered."""

    concurrency: int
    requests: int
    answered: int
    failed: int
    wall_s: float
    requests_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    peak_rss_bytes: int | None
    client_cpu: float  # of one core, used by the load generator
    window: Window
    errors: dict[str, int]
    p50_interval_ms: Interval | None = None  # of the median, with 99 % confidence

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)

    @property
    def label(self) -> str:
        """What was asked of the server."""
        return str(self.concurrency)

    @property
    def power(self) -> float:
        """Requests/s per second of median latency; 0 where nothing was answered."""
        return self.requests_per_s / (self.p50_ms / 1e3) if self.p50_ms else 0.0


def summarize_at_once(result: AtOnceResult) -> AtOnceRow:
    """Sums up one level."""
    answered = [outcome.e2e_s * 1e3 for outcome in result.outcomes if outcome.error is None]
    errors = Counter(outcome.error for outcome in result.outcomes if outcome.error is not None)
    return AtOnceRow(
        concurrency=result.concurrency,
        requests=len(result.outcomes),
        answered=len(answered),
        failed=len(result.outcomes) - len(answered),
        wall_s=result.wall_s,
        requests_per_s=len(answered) / result.wall_s,
        p50_ms=percentile(answered, 0.5),
        p99_ms=percentile(answered, 0.99),
        peak_rss_bytes=result.peak_rss_bytes,
        client_cpu=result.client_cpu,
        window=result.window,
        errors=dict(errors),
        p50_interval_ms=median_interval(answered),
    )


def at_once_table(rows: Sequence[AtOnceRow], title: str) -> Table:
    """80 columns hold it, and no figure is ever cut short. Times are in milliseconds."""
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in (
        "clients",
        "requests\nper s",
        "P50",
        "P99",
        "errors",
        "memory\nMB",
        "mean\nbatch",
        "batch\nfilled",
        "",
    ):
        view.add_column(name, justify="right" if name else "left", no_wrap=True)
    bend = knee(rows)
    for row in rows:
        seen = row.window
        view.add_row(
            str(row.concurrency), f"{row.requests_per_s:.1f}", _cell(row.p50_ms), _cell(row.p99_ms),
            f"{row.failed}/{row.requests}", "–" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 1e6:.0f}",
            "–" if seen.mean_batch is None else f"{seen.mean_batch:.1f}",
            "–" if seen.utilisation is None else f"{seen.utilisation:.0%}", "◀ knee" if row is bend else "",
        )  # fmt: skip
    return view


def details(rows: Sequence[AtOnceRow]) -> list[str]:
    """The lines below the table: why batches were cut, where the time went, and what to make of the figures."""
    lines = []
    for row in rows:
        if row.window.reasons:
            total = sum(row.window.reasons.values())
            cuts = sorted(row.window.reasons.items(), key=lambda item: -item[1])
            spent = " · ".join(f"{name} {share:.0%}" for name, share in row.window.phase_shares.items())
            lines.append(
                f"{_clients(row)}: {total} batches, cut as "
                + ", ".join(f"{name} {count / total:.0%}" for name, count in cuts)
                + (f" · time in the server: {spent}" if spent else "")
            )
    if (rule := knee_line(rows)) is not None:
        lines.append(rule)
    if any(row.answered < _FEW for row in rows):
        lines.append(f"P99 of fewer than {_FEW} answers is the largest of them; a longer --duration gives it meaning.")
    lines += [
        f"{_clients(row)}: the load generator itself used {row.client_cpu:.0%} of a core, so the server may "
        "be faster than this row says."
        for row in rows
        if row.client_cpu > _BOUND_BY_CLIENT
    ]
    for row in rows:
        for message, count in sorted(row.errors.items(), key=lambda item: -item[1])[:5]:
            lines.append(f"{_clients(row)}: {count} × {message}")
    return lines


def _clients(row: AtOnceRow) -> str:
    return f"{row.concurrency} client{'s' if row.concurrency > 1 else ''}"


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"
