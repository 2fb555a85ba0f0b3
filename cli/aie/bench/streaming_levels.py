"""Runs the levels of a load test of a model that generates text, one after another."""

import asyncio
from collections.abc import Mapping, Sequence

from aie.bench.client import get_text
from aie.bench.load import LevelResult, Sampler, run_level
from aie.bench.progress import Progress
from aie.bench.report import Row, summarize, table
from aie.bench.show import context, print_view
from aie.bench.target import Target
from aie.bench.workload import PlannedRequest, plan_requests

__all__ = ["plan_streaming", "print_footer", "print_table", "run_streaming_levels"]

Plans = Mapping[int, Sequence[PlannedRequest]]


def plan_streaming(
    levels: list[int],
    requests: int | None,
    duration: float | None,
    lengths: tuple[tuple[int, int], tuple[int, int]],
    seed: int,
    shape: str,
    shared_prefix: int,
) -> dict[int, list[PlannedRequest]]:
    """What is sent at each level."""
    plans = {}
    for level in levels:
        # With a duration alone the clock decides; the plan only has to be long enough not to run dry.
        count = requests or (max(8, 4 * level) if duration is None else max(64, 64 * level))
        plans[level] = plan_requests(
            count,
            input_tokens=lengths[0],
            output_tokens=lengths[1],
            seed=seed * 7919 + level,
            shape=shape,
            shared_prefix=shared_prefix,
        )
    return plans


def run_streaming_levels(
    target: Target, plans: Plans, duration: float | None, timeout_s: float, rows: list[Row], *, chat: bool
) -> None:
    """Appends to `rows`. On Ctrl-C what a level has measured so far is its row, and the interrupt goes on."""
    names = asyncio.run(_batch_metric(target))
    # A warm-up in the shape of the run, not counted: the first requests of a server pay for page faults and caches.
    warm_up = next(iter(plans.values()))[:2]
    unwatched = Sampler(target.endpoint, None, lambda: None)
    asyncio.run(
        run_level(target.endpoint, target.model, list(warm_up), 2, timeout_s=timeout_s, sampler=unwatched, chat=chat)
    )
    for level, plan in plans.items():
        progress = Progress(level, len(plan))
        sampler = Sampler(target.endpoint, names, target.rss_bytes)
        try:
            result = asyncio.run(
                run_level(
                    target.endpoint,
                    target.model,
                    list(plan),
                    level,
                    sampler=sampler,
                    timeout_s=timeout_s,
                    duration_s=duration,
                    on_done=progress.step,
                    chat=chat,
                )
            )
        except KeyboardInterrupt:
            if progress.outcomes:  # requests still in flight are in no count
                rows.append(
                    summarize(LevelResult(level, progress.outcomes, progress.elapsed_s, sampler.peak_rss_bytes))
                )
            raise
        finally:
            progress.end()
        rows.append(summarize(result))


async def _batch_metric(target: Target) -> tuple[str, str] | None:
    """The names of the counters from which the mean batch size follows, if the server has them."""
    try:
        _, text = await get_text(target.endpoint, "/metrics")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return None
    for prefix in ("aie_", "vllm:"):
        names = f"{prefix}engine_step_requests_total", f"{prefix}engine_steps_total"
        if all(f"\n{name}" in text for name in names):
            return names
    return None


def print_table(rows: Sequence[Row]) -> None:
    """On standard output."""
    print_view(table(rows))


def print_footer(rows: Sequence[Row], target: Target) -> None:
    """What the figures are of, and what went wrong."""
    prompt, output = sum(row.prompt_tokens for row in rows), sum(row.output_tokens for row in rows)
    print(
        f"{target.model} · {prompt} prompt and {output} output tokens · "
        + " · ".join(f"{k} {v}" for k, v in context().items())
    )
    if any(row.answered < 100 for row in rows):
        print("P99 of fewer than 100 answers is the largest of them; raise --requests for a tail that means something.")
    for row in rows:
        for message, count in sorted(row.errors.items(), key=lambda item: -item[1])[:5]:
            print(f"{row.concurrency} clients: {count} × {message}")
