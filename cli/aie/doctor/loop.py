"""A closed loop of a few clients, and what its answers come to."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from statistics import fmean

from aie.doctor.asking import Answer
from aie.doctor.measured import Load
from aie.doctor.server import Window

__all__ = ["LEVELS", "Send", "closed_loop", "level_seconds", "load_of"]

LEVELS = (1, 2, 4, 8)  # clients at once

Send = Callable[[int], Awaitable[Answer]]
"""Sends the n-th request and waits for its answer."""


def level_seconds(until_s: float, level: int) -> float:
    """When level number `level` begins its last requests: equal parts of what is left, less a fifth for answers that
    are under way then."""
    now = time.perf_counter()
    return now + 0.8 * (until_s - now) / (len(LEVELS) - level)


async def closed_loop(send: Send, clients: int, begin_until_s: float, *, at_most: int | None = None) -> list[Answer]:
    """Every client sends its next request when the last is answered, and none after `begin_until_s`; one at least."""
    numbers = itertools.count() if at_most is None else iter(range(at_most))
    answers: list[Answer] = []

    async def client() -> None:
        for n in numbers:
            answers.append(await send(n))
            if time.perf_counter() >= begin_until_s:
                return
            if answers[-1].error is not None:
                await asyncio.sleep(0.05)  # who is refused and asks at once again only counts refusals

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


def load_of(answers: Sequence[Answer], clients: int, start_s: float, window: Window) -> Load:
    """Of one level. What was given up at the end counts with what it had got."""
    wall_s = max([answer.end_s for answer in answers] + [start_s + 1e-6]) - start_s
    good = [answer for answer in answers if answer.error is None]
    late = sum(1 + len(answer.gaps_s) for answer in answers if answer.is_late and answer.first_s is not None)
    streams = [answer for answer in answers if answer.first_s is not None and answer.last_s is not None]
    seen = sum((answer.last_s or 0.0) - (answer.first_s or 0.0) for answer in streams) / wall_s if streams else None
    tokens = sum(answer.num_tokens if answer.first_s is not None else 1 for answer in good)
    asked = [answer for answer in answers if answer.error is None or answer.is_late]
    load = Load(
        clients=clients,
        per_s=(tokens + late) / wall_s,
        in_flight=sum(answer.took_s for answer in asked) / wall_s,
        num_answered=len(good),
        neighbours=window.neighbours,
        seen_batch=seen,
        num_late=sum(answer.is_late for answer in answers),
    )
    return _with_counters(load, window)


def _with_counters(load: Load, window: Window) -> Load:
    """What the server's own counters add."""
    grown = window.rates
    if grown is None:
        return load
    last = window.looks[-1].model
    if last.is_predictor:
        batches = sum(grown.cuts.values())
        computed = grown.grown.get("batch_inputs")
        mean = computed / batches if computed is not None and batches else None
        running, waiting = window.gauge("inputs_running"), window.gauge("inputs_waiting")
    else:
        mean = grown.share("step_requests", "steps")
        running, waiting = window.gauge("running"), window.gauge("waiting")
        if mean is None and running:
            mean = fmean(running)
    kv_usage = window.gauge("kv_usage")
    return replace(
        load,
        mean_batch=mean,
        running_max=max(running, default=None),
        waiting_mean=fmean(waiting) if waiting else None,
        kv_usage_max=max(kv_usage, default=None),
        preemptions=grown.grown.get("preemptions"),
        held=window.held(),
        cuts=grown.cuts if last.is_predictor else {},
        batch_limit=last.gauges.get("batch_limit"),
        workers=window.looks[-1].workers,
    )
