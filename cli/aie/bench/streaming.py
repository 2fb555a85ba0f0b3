"""The load test of a model that generates text, from its options to its report."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from aie.bench.arrivals import Rate
from aie.bench.call_traffic import AnyTraffic, CallTraffic
from aie.bench.curve import curve_lines
from aie.bench.find_max import Probe, Search, find_max, judge
from aie.bench.fleet import GeneratorDiedError
from aie.bench.knee import knee
from aie.bench.load import LevelResult, as_row
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.recorded import level_label
from aie.bench.repeats import AT_ONCE, GENERATED, Repeated, repeated_table
from aie.bench.report import Row, summarize
from aie.bench.show import print_view, shown
from aie.bench.slo import Slo
from aie.bench.sources import Sources
from aie.bench.streaming_levels import (
    print_footer,
    print_tables,
    run_streaming_level,
    run_streaming_levels,
    warm_up,
)
from aie.bench.streaming_plan import Level, closed_levels, open_level
from aie.bench.target import Target
from aie.bench.trace import Trace
from aie.bench.trace_plan import trace_level
from aie.bench.traffic import traffic_of
from aie.console import note

__all__ = ["NEXT_RUN", "StreamingReport", "probe_level", "run_streaming", "until_interrupted"]

_FIRST_RATE = 1.0
_PROBE_S = 20.0
_FEWEST = 5  # requests of a probe
NEXT_RUN = 1_000_003  # between the seeds of two runs


@dataclass(slots=True)
class StreamingReport:
    """What was measured, as far as it came."""

    slo: Slo | None = None
    results: list[LevelResult] = field(default_factory=list)
    what: str = "streaming, greedy"
    search: Search | None = None
    remarks: list[str] = field(default_factory=list)
    complete: bool = True
    unshown: OSError | None = None  # why it could not be printed

    @property
    def rows(self) -> list[Row]:
        """The levels, summed up."""
        return [summarize(result, self.slo) for result in self.results]

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
                                    "notes": [*self.remarks, *notes(rows)]}  # fmt: skip
        if self.search is not None:
            found |= {"find_max": _search_json(self.search), "verdict": self.verdict}
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
    if target.energy.note is not None:
        report.remarks.append(target.energy.note)
    if options.turns > 1:
        report.remarks.append(f"Conversations of {options.turns} turns, {options.think_s:g} s between them.")

    def measure() -> None:
        if options.find_max:
            report.search = Search()
            _search(target, options, traffic, report)
            return
        for number in range(options.repeat):
            if options.repeat > 1:
                note(f"Run {number + 1} of {options.repeat}")
            # Other prompts in each run, or a server that caches prefixes would know them from the last.
            own = replace(traffic, seed=traffic.seed + number * NEXT_RUN)
            run_streaming_levels(target, _levels(options, own, trace), own, report.results, options.progress)

    report.complete = until_interrupted(measure)
    report.unshown = shown(lambda: _print(report, target, options))
    return report


def _print(report: StreamingReport, target: Target, options: BenchOptions) -> None:
    rows = report.rows
    print_tables(rows, what=report.what, is_whole=not options.generates, slo=report.slo)
    if options.repeat > 1:
        print_view(repeated_table(Repeated.of(rows, GENERATED if options.generates else AT_ONCE)))
    print_footer(rows, target)
    for line in report.remarks:
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


def _search(target: Target, options: BenchOptions, traffic: AnyTraffic, report: StreamingReport) -> None:
    slo = report.slo
    assert slo is not None and report.search is not None
    warm_up(target, traffic)

    def probe(per_s: float) -> Probe:
        level = probe_level(traffic, per_s, options)
        run_streaming_level(target, level, traffic, report.results, options.progress)
        done = Probe(per_s, judge(slo, report.results[-1].outcomes))
        note(f"{per_s:.3g} requests/s: " + ("held" if done.is_held else "; ".join(done.broken)))
        return done

    find_max(probe, _FIRST_RATE, report.search)


def probe_level(traffic: AnyTraffic, per_s: float, options: BenchOptions) -> Level:
    """One rate of a search. Where hardly a request would be due, it takes longer: of none nothing can be said."""
    of_rate = partial(
        open_level, traffic, Rate(per_s, per_s), kind=options.kind, burstiness=options.burstiness,
        max_in_flight=options.max_in_flight,
    )  # fmt: skip
    duration_s = options.duration or (None if options.requests else _PROBE_S)
    level = of_rate(requests=options.requests, duration_s=duration_s)
    fewest = min(_FEWEST, options.requests or _FEWEST)
    return level if len(level.due) >= fewest else of_rate(requests=fewest, duration_s=None)


def _search_json(search: Search) -> dict[str, object]:
    held, broken = search.held, search.broken
    return {
        "held_per_s": None if held is None else held.rate,
        "broken_per_s": None if broken is None else broken.rate,
        "probes": [{"rate": one.rate, "broken": list(one.broken)} for one in search.probes],
    }


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
