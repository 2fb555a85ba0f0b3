"""One load test from its options to its report, of whichever kind of model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aie.bench.fleet import Fleet
from aie.bench.header import header
from aie.bench.interrupts import report_first
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
    try:
        top = header(target.endpoint, options.seed)
    except KeyboardInterrupt:
        return nothing_measured(options, target)
    with Fleet(options.processes) as fleet:
        target.fleet = fleet
        report = run_streaming(target, options, sources)
    head = _head(target.endpoint.url, _name(target, options), options) | {"header": top}
    requests = report.requests if options.rows_path is not None else ()
    return Measured(head | report.as_json(), requests, report.failed, fleet.death or report.unshown)


def nothing_measured(options: BenchOptions, target: Target | None = None) -> Measured:
    """Of a test that was interrupted before its first request."""
    report_first()
    url, model = options.url or "a server of its own", options.model or "the default model"
    if target is not None:
        url, model = target.endpoint.url, _name(target, options)
    head = _head(url, model, options)
    told = {"complete": False, "levels": [], "knee": None, "notes": ["Interrupted before anything was sent."]}
    return Measured(head | told, (), failed=False)


def _head(url: str, model: str, options: BenchOptions) -> dict[str, object]:
    return {
        "format": FORMAT,
        "url": url,
        "model": model,
        "endpoint": options.endpoint,
        "lengths": options.shape,
        "test": options.test,
        "context": context(),
    }


def _name(target: Target, options: BenchOptions) -> str:
    """Of what was tested."""
    if options.parts:
        return " + ".join(part.label for part in options.parts)
    return target.model or f"{options.plain_http.sent_as} {options.plain_http.path}"
