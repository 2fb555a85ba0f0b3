"""`aie bench compare A B`: the command line, and what it prints."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from aie.bench.compare import Comparison, Figure

__all__ = ["compare"]


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="What `aie bench --json A` wrote before a change.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The same test after it.")],
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the verdicts to this file.")] = None,
) -> None:
    """Compare two load tests, level by level: is B faster, slower, or is no difference shown?

    With several runs on both sides (aie bench --repeat 5 --json A) a difference is shown when the 95 % confidence
    interval over all figures together leaves zero out. One run on a side shows little: only medians of latencies are
    judged, and what differs from run to run is unknown. Of two --find-max the highest rates are compared. Exit code 0,
    1 when a figure is slower or more requests fail, 2 when a file is no report or the two are of different tests.
    """
    from dataclasses import asdict

    from aie.bench.compare import compare_reports
    from aie.bench.recorded import read_report
    from aie.bench.show import print_view
    from aie.console import check_writable, write_json

    if json_path is not None:
        check_writable(json_path)
    found = compare_reports(read_report(before), read_report(after))
    print_view(_table(found))
    for line in _lines(found):
        print(line)
    if json_path is not None:
        figures = [asdict(one) for one in found.figures]
        write_json(json_path, {"format": 1, "verdict": found.verdict, "runs": found.runs, "figures": figures,
                               "remarks": found.remarks})  # fmt: skip
    raise typer.Exit(1 if found.is_worse else 0)


def _table(found: "Comparison") -> "Table":
    from rich import box
    from rich.table import Table

    view = Table(title="B against A", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("level", "figure", "A", "B", "change", "from", "to", ""):
        view.add_column(name, justify="left" if name in ("level", "figure", "") else "right", no_wrap=True)
    last = ""
    for one in found.figures:
        low, high = ("–", "–") if one.interval is None else (f"{end:+.1%}" for end in one.interval)
        view.add_row(
            one.level if one.level != last else "", f"{one.name} {one.unit}", _number(one.before), _number(one.after),
            f"{one.change:+.1%}", low, high, _verdict(one),
        )  # fmt: skip
        last = one.level
    return view


def _verdict(figure: "Figure") -> str:
    return figure.verdict if figure.verdict in ("faster", "slower") else "–" if figure.interval is None else "="


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _lines(found: "Comparison") -> list[str]:
    lines = [f"Verdict: {found.verdict}.", *found.remarks]
    if any(one.level == "search" for one in found.figures):
        lines.append("A search ends with a bracket of rates; a difference is shown where the two do not overlap.")
    elif found.runs < 2:
        lines.append(
            "One run on a side shows little: medians are judged by the spread of their own requests, throughput not at "
            "all, and how much a run differs from the next is unknown. Measure both with --repeat 5."
        )
    return lines
