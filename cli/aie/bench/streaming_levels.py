"""Runs the levels of a load test of a model that generates text, one after another."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from math import inf

from aie.bench.by_step import steps_table
from aie.bench.call_traffic import AnyTraffic, CallTraffic
from aie.bench.dashboard import spark
from aie.bench.early_stop import EarlyStop
from aie.bench.fleet import GeneratorDiedError
from aie.bench.generator import Call, Closed, Open, Plan
from aie.bench.load import LevelResult, Sampler, calls_of, run_level
from aie.bench.notes import notes
from aie.bench.progress import Progress, Seen, Ui
from aie.bench.report import Row, latency_table, load_table
from aie.bench.server_report import server_table
from aie.bench.show import context, print_view, printable
from aie.bench.slo import Slo
from aie.bench.streaming_plan import Level
from aie.bench.target import Target
from aie.bench.watched import at_rest, run_watched
from aie.bench.whole_report import parts_table, whole_table
from aie.bench.workload import PlannedRequest
from aie.console import format_bytes

__all__ = ["print_footer", "print_tables", "run_streaming_level", "run_streaming_levels", "warm_up"]


def run_streaming_levels(
    target: Target, levels: Sequence[Level], traffic: AnyTraffic, results: list[LevelResult], ui: Ui = "plain",
    *, stops: bool = False,
) -> list[str]:  # fmt: skip
    """Appends to `results`. On Ctrl-C what a level has measured so far is its result, and the interrupt goes on. stops:
    a level that saturates the server ends early, and those of higher rates are not begun; gives back which."""
    warm_up(target, traffic)
    saturated_per_s = inf
    not_run = []
    for level in levels:
        per_s = level.rate.mean if level.rate is not None and level.rate.is_constant else None
        if per_s is not None and per_s >= saturated_per_s:
            not_run.append(level.label)
            continue
        stop = EarlyStop(level.due, level.num_requests or 0) if stops and per_s is not None and level.due else None
        run_streaming_level(target, level, traffic, results, ui, stop=stop)
        if per_s is not None and results[-1].stopped is not None:
            saturated_per_s = per_s
    return not_run


def warm_up(target: Target, traffic: AnyTraffic) -> None:
    """A few requests in the shape of the run, not counted: the first of a server pay for page faults and caches."""
    sampler = Sampler(target.endpoint, None, lambda: None)
    requests: Sequence[PlannedRequest | Call] = traffic.requests(2, 0)
    clients = 2
    if isinstance(traffic, CallTraffic):
        requests, clients = traffic.warm_up_calls(), traffic.warm_up[1]
    asyncio.run(
        run_level(
            target.endpoint, target.model, requests, clients, sampler=sampler, timeout_s=traffic.timeout_s,
            chat=traffic.chat, fleet=target.fleet,
        )
    )  # fmt: skip


def run_streaming_level(
    target: Target, level: Level, traffic: AnyTraffic, results: list[LevelResult], ui: Ui = "plain",
    *, stop: EarlyStop | None = None,
) -> None:  # fmt: skip
    """Appends to `results`: also when it is interrupted, or the load generator dies, as far as anything has ended.
    stop: ends it early, and then waits until the server has come to rest."""
    before = len(results)
    sampler = target.sampler()
    progress = Progress(level.label, level.num_requests, ui=ui)
    progress.server = Seen(target.rss_bytes, lambda: {} if sampler.server is None else sampler.server.gauges)
    try:
        results.append(asyncio.run(_run(target, level, traffic, sampler, progress, stop)))
    except (KeyboardInterrupt, GeneratorDiedError):
        if progress.outcomes:  # requests still in flight are in no count
            partial = LevelResult(level.clients, progress.outcomes, progress.elapsed_s, start_s=progress.start_s)
            sampler.add_to(partial)
            results.append(partial)
        raise
    finally:
        progress.end()
        for result in results[before:]:
            result.offered_per_s = None if level.rate is None else level.rate.mean
            result.max_in_flight = level.max_in_flight
            result.steps = level.steps
            result.rate = level.rate_label
    if results[-1].stopped is not None and asyncio.run(at_rest(target.sampler())) is None:
        warm_up(target, traffic)  # answered after all that came before, on a server that keeps to its line


async def _run(
    target: Target, level: Level, traffic: AnyTraffic, sampler: Sampler, progress: Progress, stop: EarlyStop | None
) -> LevelResult:
    showing = asyncio.create_task(progress.show())
    calls = calls_of(level.requests, target.model, chat=traffic.chat, think_s=traffic.think_s)
    is_open = level.rate is not None
    loop = Open(level.due, level.max_in_flight) if is_open else Closed(level.clients, level.duration_s)
    try:
        plan = Plan(target.endpoint, calls, loop, traffic.timeout_s)
        return await run_watched(plan, stop, sampler=sampler, progress=progress, fleet=target.fleet)
    finally:
        showing.cancel()


def print_tables(
    rows: Sequence[Row], *, what: str = "streaming, greedy", is_whole: bool = False, slo: Slo | None = None
) -> None:
    """On standard output. what: was asked; is_whole: whether answers came in one piece."""
    is_open = any(row.offered_per_s is not None for row in rows)
    title = f"{'Open' if is_open else 'Closed'} loop, {what}{'' if slo is None else f'; good: {slo}'}"
    if is_whole:
        print_view(whole_table(rows, title, slo=slo))
        if (parts := parts_table(rows, slo=slo)) is not None:
            print_view(parts)
        _print_steps(rows)
        return
    print_view(load_table(rows, title, slo=slo))
    if (parts := parts_table(rows, slo=slo)) is not None:
        print_view(parts)
    print_view(latency_table(rows))
    told = server_table([(row.label, row.server, (row.due_ttft if is_open else row.ttft).p50) for row in rows])
    if told is not None:
        print_view(told)
    _print_steps(rows)


def _print_steps(rows: Sequence[Row]) -> None:
    view = steps_table([(row.label, [asdict(step) for step in row.steps]) for row in rows if row.steps])
    if view is not None:
        print_view(view)


def _over_time(rows: Sequence[Row]) -> list[str]:
    """A line for each level, of its first run."""
    found = {row.label: row.timeline for row in reversed(rows) if row.timeline is not None}
    labels = [label for label in dict.fromkeys(row.label for row in rows) if label in found]
    room = max(map(len, labels), default=0)
    lines = [f"{label:>{room}} {spark(found[label].tokens_per_s)} ≤ {max(found[label].tokens_per_s):.0f}"
             for label in labels]  # fmt: skip
    return ["Tokens per second over the time of each level, and the most:", *lines] if lines else []


def print_footer(rows: Sequence[Row], target: Target) -> None:
    """What the figures are of, and what went wrong."""
    prompt, output = sum(row.prompt_tokens for row in rows), sum(row.output_tokens for row in rows)
    tokens = [f"{prompt} prompt and {output} output tokens"] if output else []
    if prompt and not output and (answered := sum(row.answered for row in rows)):
        tokens = [f"{prompt / answered:.1f} tokens per request"]
    if not prompt and not output:
        tokens = [f"{format_bytes(sum((row.bytes_per_s or 0.0) * row.wall_s for row in rows))} received"]
    name = [printable(target.model)] if target.model and not any(row.parts for row in rows) else []
    print(" · ".join([*name, *tokens, *(f"{k} {v}" for k, v in context().items())]))
    for line in [*notes(rows), *_over_time(rows)]:
        print(line)
