"""One load test from its options to its report, of whichever kind of model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aie.bench.options import BenchOptions
from aie.bench.recorded import FORMAT, level_label
from aie.bench.show import context
from aie.bench.sources import Sources
from aie.bench.target import Target

__all__ = ["Measured", "run_test"]


@dataclass(frozen=True, slots=True)
class Measured:
    """document: for `--json` and the reports made of it; requests: for `--rows`."""

    document: Mapping[str, Any]
    requests: Sequence[Mapping[str, object]]
    failed: bool  # a request that ought to have been answered was not


def run_test(target: Target, options: BenchOptions, sources: Sources) -> Measured:
    """Runs, and prints tables on standard output."""
    if options.generates:
        found, requests, failed = _generated(target, options, sources)
    else:
        found, requests, failed = _at_once(target, options)
    head = {
        "format": FORMAT,
        "url": target.endpoint.url,
        "model": target.model,
        "endpoint": options.endpoint,
        "lengths": options.shape,
        "test": options.test,
        "context": context(),
    }
    return Measured(head | found, requests, failed)


def _generated(
    target: Target, options: BenchOptions, sources: Sources
) -> tuple[dict[str, object], Sequence[Mapping[str, object]], bool]:
    from aie.bench.streaming import run_streaming

    report = run_streaming(target, options, sources)
    return report.as_json(), report.requests if options.rows_path is not None else (), report.failed


def _at_once(target: Target, options: BenchOptions) -> tuple[dict[str, object], Sequence[Mapping[str, object]], bool]:
    from aie.bench.at_once_levels import plan_at_once, run_at_once_levels, show_at_once
    from aie.bench.at_once_report import AtOnceRow, details
    from aie.bench.curve import curve_lines
    from aie.bench.knee import knee
    from aie.bench.streaming import until_interrupted

    rows: list[AtOnceRow] = []
    plan = plan_at_once(
        target, options.endpoint, options.levels, requests=options.requests, duration_s=options.duration,
        shape=options.shape, input_tokens=options.bounds, seed=options.seed, timeout_s=options.timeout_s,
        ui=options.progress,
    )  # fmt: skip
    complete = until_interrupted(lambda: run_at_once_levels(target, plan, rows))
    show_at_once(rows, plan, target)
    bend = knee(rows)
    found: dict[str, object] = {
        "complete": complete,
        "levels": [row.as_json() for row in rows],
        "knee": None if bend is None else level_label(bend.as_json()),
        "notes": details(rows),
    }
    for line in curve_lines(found):
        print(line)
    return found, (), any(row.failed for row in rows)
