"""One load test from its options to its report, of whichever kind of model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aie.bench.fleet import Fleet
from aie.bench.header import header
from aie.bench.options import BenchOptions
from aie.bench.recorded import FORMAT
from aie.bench.show import context
from aie.bench.sources import Sources
from aie.bench.streaming import run_streaming
from aie.bench.target import Target

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
    top = header(target.endpoint, options.seed)
    with Fleet(options.processes) as fleet:
        target.fleet = fleet
        report = run_streaming(target, options, sources)
    head = {
        "format": FORMAT,
        "url": target.endpoint.url,
        "model": _name(target, options),
        "endpoint": options.endpoint,
        "lengths": options.shape,
        "test": options.test,
        "context": context(),
        "header": top,
    }
    requests = report.requests if options.rows_path is not None else ()
    return Measured(head | report.as_json(), requests, report.failed, fleet.death or report.unshown)


def _name(target: Target, options: BenchOptions) -> str:
    """Of what was tested."""
    if options.parts:
        return " + ".join(part.label for part in options.parts)
    return target.model or f"{options.plain_http.sent_as} {options.plain_http.path}"
