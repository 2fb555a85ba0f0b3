"""One load test from its options to its report, of whichever kind of model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aie.bench.fleet import Fleet
from aie.bench.options import BenchOptions
from aie.bench.recorded import FORMAT, level_label
from aie.bench.show import context, print_view, shown
from aie.bench.sources import Sources
from aie.bench.target import Target
from aie.console import note

__all__ = ["Measured", "run_test"]


@dataclass(frozen=True, slots=True)
class Measured:
    """document: for `--json` and the reports made of it; requests: for `--rows`."""

    document: Mapping[str, Any]
    requests: Sequence[Mapping[str, object]]
    failed: bool  # a request that ought to have been answered was not
    broken: Exception | None = None  # what ended it, or why it could not be printed; the figures are valid


def run_test(target: Target, options: BenchOptions, sources: Sources) -> Measured:
    """Runs, and prints tables on standard output."""
    with Fleet(options.processes) as fleet:
        target.fleet = fleet
        if options.generates:
            found, requests, failed, unshown = _generated(target, options, sources)
        else:
            found, requests, failed, unshown = _at_once(target, options)
    head = {
        "format": FORMAT,
        "url": target.endpoint.url,
        "model": target.model,
        "endpoint": options.endpoint,
        "lengths": options.shape,
        "test": options.test,
        "context": context(),
    }
    return Measured(head | found, requests, failed, fleet.death or unshown)


_Found = tuple[dict[str, object], Sequence[Mapping[str, object]], bool, OSError | None]


def _generated(target: Target, options: BenchOptions, sources: Sources) -> _Found:
    from aie.bench.streaming import run_streaming

    report = run_streaming(target, options, sources)
    return report.as_json(), report.requests if options.rows_path is not None else (), report.failed, report.unshown


def _at_once(target: Target, options: BenchOptions) -> _Found:
    from aie.bench.at_once_levels import plan_at_once, run_at_once_levels, show_at_once
    from aie.bench.at_once_report import AtOnceRow, details
    from aie.bench.curve import curve_lines
    from aie.bench.knee import knee
    from aie.bench.repeats import AT_ONCE, Repeated, repeated_table
    from aie.bench.streaming import NEXT_RUN, until_interrupted

    rows: list[AtOnceRow] = []
    plans = [
        plan_at_once(
            target, options.endpoint, options.levels, requests=options.requests, duration_s=options.duration,
            shape=options.shape, input_tokens=options.bounds, seed=options.seed + number * NEXT_RUN,
            timeout_s=options.timeout_s, ui=options.progress,
        )
        for number in range(options.repeat)
    ]  # fmt: skip

    def measure() -> None:
        for number, plan in enumerate(plans, 1):
            if len(plans) > 1:
                note(f"Run {number} of {len(plans)}")
            run_at_once_levels(target, plan, rows)

    complete = until_interrupted(measure)
    bend = knee(rows)
    found: dict[str, object] = {
        "complete": complete,
        "levels": [row.as_json() for row in rows],
        "knee": None if bend is None else level_label(bend.as_json()),
        "notes": details(rows),
    }

    def show() -> None:
        show_at_once(rows, plans[0], target)
        if len(plans) > 1:
            print_view(repeated_table(Repeated.of(rows, AT_ONCE)))
        for line in curve_lines(found):
            print(line)

    return found, (), any(row.failed for row in rows), shown(show)
