"""Sends a plan with an eye on whether the rest of it can still change anything, and waits until a server that was left
in mid-work has come to rest."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack

from aie.bench.early_stop import EarlyStop
from aie.bench.fleet import Fleet
from aie.bench.generator import Outcome, Plan
from aie.bench.load import LevelResult, Sampler, run_plan
from aie.bench.progress import Progress

__all__ = ["at_rest", "run_watched"]

_LOOK_EVERY_S = 0.25
_REST_S = 60.0  # that a server may take to come to rest


async def run_watched(
    plan: Plan, stop: EarlyStop | None, *, sampler: Sampler, progress: Progress, fleet: Fleet | None
) -> LevelResult:
    """Where `stop` says so, no request is begun any more and those under way are hung up on: the drain of a saturated
    level takes longer than all before it."""
    if stop is None:
        return await run_plan(
            plan, sampler=sampler, fleet=fleet, on_start=progress.started, on_done=progress.step,
            on_flow=progress.flowed, on_begin=progress.begin,
        )  # fmt: skip
    with ExitStack() as stack:
        sender = stack.enter_context(Fleet()) if fleet is None else fleet
        stopped: list[tuple[str, float]] = []

        async def watch() -> None:
            while True:
                await asyncio.sleep(_LOOK_EVERY_S)
                now_s = time.perf_counter()
                if (why := stop.look(now_s)) is not None:
                    stopped.append((why, now_s))
                    sender.stop(hang_up=True)
                    return

        watching = asyncio.create_task(watch())
        try:
            result = await run_plan(
                plan, sampler=sampler, fleet=sender, on_start=_both(progress.started, stop.started),
                on_first=stop.first, on_done=_both(progress.step, stop.ended), on_flow=progress.flowed,
                on_begin=progress.begin,
            )  # fmt: skip
        finally:
            watching.cancel()
    for why, at_s in stopped:
        result.stopped = why
        begun = sum(one.turn == 0 for one in result.outcomes)
        result.unsent = max(0, bisect_right(stop.due, at_s - result.start_s) - begun)
    return result


async def at_rest(sampler: Sampler) -> bool | None:
    """Waits until the server computes nothing and nothing waits there: what was hung up on it may go on with for a
    while, and the next level would pay. False: not within a minute; None: its metrics do not say."""
    end_s = time.perf_counter() + _REST_S
    while time.perf_counter() < end_s:
        await sampler.look()
        watches = [*sampler.parts.values(), *([] if sampler.server is None else [sampler.server])]
        if not watches or not all("running" in watch.gauges for watch in watches):
            return None
        if not any(watch.gauges.get(name, 0.0) for watch in watches for name in ("running", "waiting")):
            return True
        await asyncio.sleep(_LOOK_EVERY_S)
    return False


def _both(one: Callable[[Outcome], None], other: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    def tell(outcome: Outcome) -> None:
        one(outcome)
        other(outcome)

    return tell
