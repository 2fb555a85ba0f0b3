"""The search for the highest rate on a real server: how one rate is tried."""

from functools import partial

from aie.bench.arrivals import Rate
from aie.bench.call_traffic import AnyTraffic
from aie.bench.early_stop import EarlyStop
from aie.bench.find_max import Probe, Search, find_max
from aie.bench.load import LevelResult
from aie.bench.options import BenchOptions
from aie.bench.slo import Slo
from aie.bench.streaming_levels import run_streaming_level, warm_up
from aie.bench.streaming_plan import Level, open_level
from aie.bench.target import Target
from aie.console import note

__all__ = ["probe_level", "run_search"]

_FIRST_RATE = 1.0
_PROBE_S = 20.0
_FEWEST = 5  # requests of a probe


def run_search(
    target: Target, options: BenchOptions, traffic: AnyTraffic, search: Search, slo: Slo, results: list[LevelResult]
) -> None:
    """Adds to `search` and `results` as it goes."""
    warm_up(target, traffic)

    def probe(per_s: float) -> Probe:
        level = probe_level(traffic, per_s, options)
        stop = EarlyStop(level.due, level.num_requests or 0, slo) if options.stops else None
        run_streaming_level(target, level, traffic, results, options.progress, stop=stop)
        last = results[-1]
        done = Probe.of(per_s, slo, last.outcomes, last.wall_s, last.stopped)
        note(f"{per_s:.3g} {search.unit}: " + ("held" if done.is_held else "; ".join(done.broken)))
        return done

    find_max(probe, _FIRST_RATE, search)


def probe_level(traffic: AnyTraffic, per_s: float, options: BenchOptions) -> Level:
    """One rate of a search. Where hardly a request would be due, it takes longer: of none nothing can be said."""
    of_rate = partial(
        open_level, traffic, Rate(per_s, per_s), kind=options.kind, burstiness=options.burstiness,
        max_in_flight=options.max_in_flight,
    )  # fmt: skip
    duration_s = options.duration or (None if options.requests else _PROBE_S)
    level = of_rate(requests=options.requests, duration_s=duration_s)
    fewest = min(_FEWEST, options.requests or _FEWEST)
    return level if len(level.due) >= fewest else of_rate(requests=fewest * options.turns, duration_s=None)
