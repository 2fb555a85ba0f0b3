"""Tables of answers that come in one piece, and of the parts of a mix."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from aie.bench.knee import knee
from aie.bench.report import Latency, Row
from aie.bench.slo import Slo

__all__ = ["parts_table", "whole_table"]


def whole_table(rows: Sequence[Row], title: str, *, slo: Slo | None = None) -> Table:
    """80 columns hold it, and no figure is ever cut short. Times in milliseconds, in the open loop from when requests
    were due."""
    is_open = any(row.offered_per_s is not None for row in rows)
    view = _empty(title)
    names = ["rate" if is_open else "clients", "answered\nper s", *([] if slo is None else ["good\nper s"])]
    names += ["P50", "P90", "P99", "answered", "refused", "late", "error", "memory\nMB", "mean\nbatch", "batch\nfull"]
    for name in names:
        view.add_column(name, justify="right", no_wrap=True)
    bend = knee(rows)
    if bend is not None:
        view.add_column("", no_wrap=True)
    for row in rows:
        seen = row.server
        view.add_row(
            row.label, _cell(row.requests_per_s), *([] if slo is None else [f"{(row.good or 0) / row.wall_s:.1f}"]),
            *_percentiles(row.due_e2e if is_open else row.e2e), f"{row.answered}/{row.requests}",
            str(row.ends["rejected"]), str(row.ends["timed out"]), str(row.ends["cut"] + row.ends["failed"]),
            "–" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 1e6:.0f}", _cell(row.mean_batch),
            "–" if seen is None or seen.utilisation is None else f"{seen.utilisation:.0%}",
            *([] if bend is None else ["◀" if row.label == bend.label else ""]),
        )  # fmt: skip
    return view


def parts_table(rows: Sequence[Row], *, slo: Slo | None = None) -> Table | None:
    """A line for each part of each level; None where there are no parts."""
    if not any(row.parts for row in rows):
        return None
    is_open = any(row.offered_per_s is not None for row in rows)
    view = _empty("By part, in ms" + (" from when requests were due" if is_open else ""))
    view.add_column("at", justify="right", no_wrap=True)
    view.add_column("  part", no_wrap=True)
    names = ["per s", *([] if slo is None else ["good"]), "ans-\nwered", "failed", "TTFT\nP50", "P99", "TPOT\nP50",
             "P99", "E2E\nP50", "P99"]  # fmt: skip
    for name in names:
        view.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        for label, part in row.parts.items():
            ttft, e2e = (part.due_ttft, part.due_e2e) if is_open else (part.ttft, part.e2e)
            view.add_row(
                row.label, f"  {label}", _cell(part.requests_per_s),
                *([] if slo is None else [f"{(part.good or 0) / part.wall_s:.1f}"]),
                f"{part.answered}/{part.requests}", str(part.failed), _cell(ttft.p50), _cell(ttft.p99),
                _cell(part.tpot.p50), _cell(part.tpot.p99), _cell(e2e.p50), _cell(e2e.p99),
            )  # fmt: skip
    return view


def _percentiles(latency: Latency) -> list[str]:
    return [_cell(value) for value in (latency.p50, latency.p90, latency.p99)]


def _empty(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"
