"""The load test of a model that generates text, from its options to its report."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from aie.bench.call_traffic import AnyTraffic, CallTraffic
from aie.bench.curve import curve_lines
from aie.bench.find_max import Search
from aie.bench.fleet import GeneratorDiedError
from aie.bench.interrupts import report_first
from aie.bench.knee import knee
from aie.bench.load import LevelResult, as_row
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.probing import run_search
from aie.bench.recorded import level_label
from aie.bench.repeats import Repeated, figures_of, repeated_table
from aie.bench.report import Row, summarize
from aie.bench.show import print_view, shown
from aie.bench.slo import Slo
from aie.bench.sources import Sources
from aie.bench.streaming_levels import (
    print_footer,
    print_tables,
    run_streaming_levels,
)
from aie.bench.streaming_plan import Level, closed_levels, open_level
from aie.bench.target import Target
from aie.bench.trace import Trace
from aie.bench.trace_plan import trace_level
from aie.bench.traffic import traffic_of
from aie.console import note

__all__ = ["NEXT_RUN", "StreamingReport", "run_streaming", "until_interrupted"]

NEXT_RUN = 1_000_003  # between the seeds of two runs


@dataclass(slots=True)
class StreamingReport:
    """What was measured, as far as it came."""

    slo: Slo | None = None
    results: list[LevelResult] = field(default_factory=list)
    what: str = "streaming, greedy"
    search: Search | None = None
    remarks: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)  # levels, since lower ones were saturated
    complete: bool = True
    unshown: OSError | None = None  # why it could not be printed
    _rows: list[Row] = field(default_factory=list, init=False, repr=False)

    @property
    def rows(self) -> list[Row]:
        """The levels, summed up: each once, since those of models that answer at once hold many requests."""
        self._rows += [summarize(result, self.slo) for result in self.results[len(self._rows) :]]
        return self._rows

    @property
    def requests(self) -> list[dict[str, object]]:
        """Every single request, for `--rows`; times in seconds from the start of its level."""
        return [
            {"level": number, "clients": result.concurrency, **as_row(one, result)}
            for number, result in enumerate(self.results)
            for one in result.outcomes
        ]

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        rows = self.rows
        levels = [row.as_json() for row in rows]
        bend = None if self.search is not None else knee(rows)
        found: dict[str, object] = {"complete": self.complete, "levels": levels,
                                    "knee": None if bend is None else level_label(bend.as_json()),
                                    "not_run": list(dict.fromkeys(self.not_run)),
                                    "notes": [*self.told, *notes(rows)]}  # fmt: skip
        if self.search is not None:
            found |= {"find_max": self.search.as_json(), "verdict": self.verdict}
        return found

    @property
    def told(self) -> list[str]:
        """What is to be said of all levels together."""
        found = list(self.remarks)
        if self.not_run:
            levels = ", ".join(dict.fromkeys(self.not_run))
            found.append(f"Not run, since a lower rate had saturated the server: {levels}. --no-stop runs them.")
        if self.search is not None and self.slo is not None:
            found += self.search.remarks(self.slo)
        return found

    @property
    def verdict(self) -> str | None:
        """Of a search."""
        return None if self.search is None else f"Highest rate that keeps {self.slo}: {self.search.verdict()}."

    @property
    def failed(self) -> bool:
        """Whether a request was not answered that ought to have been. A search looks for that, and fails where no rate
        holds."""
        if self.search is not None:
            return self.search.held is None
        return any(row.failed for row in self.rows)


def run_streaming(target: Target, options: BenchOptions, sources: Sources) -> StreamingReport:
    """Runs, and prints tables on standard output. Ctrl-C ends the measurement and not the report."""
    traffic = traffic_of(target, options, sources)
    report = StreamingReport(options.promise)
    if isinstance(traffic, CallTraffic):
        report.what = traffic.what
    trace = sources.trace
    if trace is not None and trace.num_failed:
        report.remarks.append(f"Left out: {trace.num_failed} of the trace that had no answer there.")
    if options.turns > 1:
        begun = "" if options.rate is None and not options.find_max else " The rate is of conversations that begin;"
        later = f"{begun} a later turn is due {options.think_s:g} s after the answer before it." if begun else ""
        report.remarks.append(f"Conversations of {options.turns} turns, {options.think_s:g} s between them.{later}")

    def measure() -> None:
        if options.find_max:
            report.search = Search("conversations/s" if options.turns > 1 else "requests/s")
            assert report.slo is not None
            run_search(target, options, traffic, report.search, report.slo, report.results)
            return
        for number in range(options.repeat):
            if options.repeat > 1:
                note(f"Run {number + 1} of {options.repeat}")
            # Other prompts in each run, or a server that caches prefixes would know them from the last.
            own = replace(traffic, seed=traffic.seed + number * NEXT_RUN)
            levels = _levels(options, own, trace)
            report.not_run += run_streaming_levels(
                target, levels, own, report.results, options.progress, stops=options.stops
            )

    report.complete = until_interrupted(measure)
    report_first()
    if target.energy.note is not None and not any(row.energy for row in report.rows):
        report.remarks.append(target.energy.note)
    report.unshown = shown(lambda: _print(report, target, options))
    return report


def _print(report: StreamingReport, target: Target, options: BenchOptions) -> None:
    rows = report.rows
    print_tables(rows, what=report.what, is_whole=not options.generates, slo=report.slo)
    if options.repeat > 1:
        print_view(repeated_table(Repeated.of(rows, figures_of(rows))))
    print_footer(rows, target)
    for line in report.told:
        print(line)
    for line in curve_lines(report.as_json()):
        print(line)
    if report.verdict is not None:
        print(report.verdict)


def _levels(options: BenchOptions, traffic: AnyTraffic, trace: Trace | None) -> list[Level]:
    if trace is not None and not isinstance(traffic, CallTraffic):
        return [trace_level(trace, seed=traffic.seed, cancel=traffic.cancel, max_in_flight=options.max_in_flight)]
    if not options.rates:
        make = traffic.closed_levels if isinstance(traffic, CallTraffic) else partial(closed_levels, traffic)
        return make(options.levels, requests=options.requests, duration_s=options.duration)
    return [
        open_level(
            traffic, rate, kind=options.kind, burstiness=options.burstiness, requests=options.requests,
            duration_s=options.duration, max_in_flight=options.max_in_flight,
        )
        for rate in options.rates
    ]  # fmt: skip


def until_interrupted(run: Callable[[], None]) -> bool:
    """False on Ctrl-C, and where the load generator died, which the command line says at its end."""
    try:
        run()
        return True
    except GeneratorDiedError:
        return False
    except KeyboardInterrupt:
        pass
    note("Interrupted; what was measured so far follows, with a part of the requests in its last row.")
    return False
