"""Runs the levels of a load test of a model that answers at once, one after another."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aie.bench.at_once import AtOnceResult, run_at_once
from aie.bench.at_once_report import AtOnceRow, at_once_table, details, summarize_at_once
from aie.bench.client import Outcome
from aie.bench.load import Sampler
from aie.bench.progress import Progress, Seen, Ui
from aie.bench.questions import MAX_DIFFERENT, Question, ask_inputs, plan_questions
from aie.bench.show import context, print_view
from aie.bench.target import Target
from aie.bench.workload import length_draw

__all__ = ["AtOncePlan", "plan_at_once", "run_at_once_levels", "show_at_once"]

_DURATION_S = 5.0
_MOST = 200_000  # requests per level: what is kept of each is small, but not nothing
_WARM_UP = (64, 8)  # requests, clients


@dataclass(frozen=True, slots=True)
class AtOncePlan:
    """Everything that is decided before the clock starts."""

    kind: str
    shape: str
    questions: list[Question]
    levels: Sequence[int]
    count: int  # per level, at most
    duration_s: float | None
    timeout_s: float
    ui: Ui = "plain"


def plan_at_once(
    target: Target,
    kind: str,
    levels: Sequence[int],
    *,
    requests: int | None,
    duration_s: float | None,
    shape: str,
    input_tokens: tuple[int, int],
    seed: int,
    timeout_s: float,
    ui: Ui = "plain",
) -> AtOncePlan:
    """Without a number of requests and a duration: five seconds per level, which suits small and large models."""
    inputs = [] if kind == "embeddings" else ask_inputs(target.endpoint, target.model)
    if requests is None and duration_s is None:
        duration_s = _DURATION_S
    count = min(requests or _MOST, _MOST)
    questions = plan_questions(
        kind, target.model, inputs, min(count, MAX_DIFFERENT), length=length_draw(shape, input_tokens), seed=seed
    )
    reads_text = kind == "embeddings" or any(tensor.datatype == "BYTES" for tensor in inputs)
    return AtOncePlan(kind, shape if reads_text else "", questions, levels, count, duration_s, timeout_s, ui)


def run_at_once_levels(target: Target, plan: AtOncePlan, rows: list[AtOnceRow]) -> None:
    """Appends to `rows`. On Ctrl-C what a level has measured so far is its row, and the interrupt goes on."""
    _level(target, plan, _WARM_UP[1], _WARM_UP[0], None)  # in the shape of the run; it pays for page faults and caches
    for level in plan.levels:
        # With a duration the clock decides how many there will be.
        progress = Progress(
            f"{level} client{'s' if level > 1 else ''}", None if plan.duration_s is not None else plan.count, ui=plan.ui
        )
        progress.server = Seen(target.rss_bytes)
        try:
            result = _level(target, plan, level, plan.count, progress)
        except KeyboardInterrupt:
            if progress.outcomes:
                rows.append(summarize_at_once(AtOnceResult(level, progress.outcomes, progress.elapsed_s)))
            raise
        finally:
            progress.end()
        rows.append(summarize_at_once(result))


def show_at_once(rows: Sequence[AtOnceRow], plan: AtOncePlan, target: Target) -> None:
    """The table and the lines below it."""
    lengths = f", {plan.shape} lengths" if plan.shape else ""
    print_view(at_once_table(rows, f"Closed loop, {plan.kind}, one input per request{lengths}; times in ms"))
    answered = sum(row.answered for row in rows)
    tokens = sum(row.window.tokens or 0 for row in rows)
    what = f" · {tokens / answered:.1f} tokens per request" if tokens and answered else ""
    print(f"{target.model}{what} · " + " · ".join(f"{name} {value}" for name, value in context().items()))
    for line in details(rows):
        print(line)


def _level(target: Target, plan: AtOncePlan, clients: int, count: int, progress: Progress | None) -> AtOnceResult:
    sampler = Sampler(target.endpoint, None, target.rss_bytes)

    async def run() -> AtOnceResult:
        showing = None if progress is None else asyncio.create_task(progress.show())
        try:
            return await run_at_once(
                target.endpoint, target.model, plan.questions, clients, count=count, duration_s=plan.duration_s,
                timeout_s=plan.timeout_s, sampler=sampler, on_done=_no_news if progress is None else progress.step,
                on_start=_no_news if progress is None else progress.started,
            )  # fmt: skip
        finally:
            if showing is not None:
                showing.cancel()

    return asyncio.run(run())


def _no_news(_outcome: Outcome) -> None: ...
