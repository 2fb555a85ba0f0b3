"""The real scheduler, a pretended model: a virtual clock that a declared cost model advances.

It answers "what would this policy do under this traffic" in milliseconds and without a model, exactly and repeatably.
It does not answer "how fast is this machine": every time in its report is as good as the cost model's constants.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from aie_scheduler.cut import CutReason
from aie_scheduler.errors import QueueFullError, RequestTooLongError
from aie_scheduler.plan import StepPlan
from aie_scheduler.protocol import Scheduler
from aie_scheduler.report import Percentiles, SimulationReport
from aie_scheduler.request import BlockContent, Request
from aie_scheduler.workload import SimulatedRequest, Workload

__all__ = ["BatchCost", "CostModel", "StepCost", "simulate"]


class StepCost(Protocol):
    """What a step costs."""

    def step_s(self, plan: StepPlan) -> float:
        """Seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds that one step takes, as a sum.

    A decode step reads all weights once, however many sequences share it: that is `step_overhead_s`, and the reason why
    batching pays.
    """

    step_overhead_s: float  # once per step
    per_prefill_token_s: float  # per token of a chunk that has more than one
    per_decode_seq_s: float  # per chunk of one token
    per_context_token_s: float = 0.0  # per cached token that a decode attends to
    pads_prefill: bool = False  # prompts of a step are computed as a rectangle, as executors without packing do

    def step_s(self, plan: StepPlan) -> float:
        """What the plan's chunks cost together."""
        prefill = [chunk.num_tokens for chunk in plan.chunks if chunk.num_tokens > 1]
        decodes = [chunk.start for chunk in plan.chunks if chunk.num_tokens == 1]
        prefill_tokens = len(prefill) * max(prefill, default=0) if self.pads_prefill else sum(prefill)
        return (
            self.step_overhead_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_seq_s * len(decodes)
            + self.per_context_token_s * sum(decodes)
        )


@dataclass(frozen=True, slots=True)
class BatchCost:
    """A straight line: so much for a batch, so much for each token in it, padding included where the batch pads."""

    per_batch_s: float
    per_token_s: float

    def step_s(self, plan: StepPlan) -> float:
        """Seconds of one step."""
        return self.per_batch_s + self.per_token_s * plan.num_slots


@dataclass(slots=True)
class _Life:
    """What happened to one request so far."""

    request: SimulatedRequest
    num_sampled: int = 0
    num_computed: int = 0  # the furthest it ever got: computing below it is recomputation
    started_s: float | None = None
    first_token_s: float = 0.0
    done_s: float = 0.0


@dataclass(slots=True)
class _Tally:
    """What happened to all of them."""

    done: list[_Life] = field(default_factory=list)
    num_refused: int = 0
    num_expired: int = 0
    num_recomputed: int = 0
    busy_s: float = 0.0
    num_tokens: int = 0
    num_slots: int = 0
    reasons: Counter[CutReason] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)


def simulate(
    scheduler: Scheduler,
    workload: Workload,
    cost_model: StepCost,
    *,
    on_step: Callable[[float, StepPlan], None] | None = None,
) -> SimulationReport:
    """Run a workload through a scheduler until every request has ended. `on_step(start_s, plan)` sees each plan."""
    now = 0.0
    tally = _Tally()
    lives: dict[str, _Life] = {}
    arrivals = iter(workload.requests)
    pending = next(arrivals, None)
    while pending is not None or scheduler.has_work:
        while pending is not None and pending.arrival_s <= now:
            _arrive(scheduler, pending, lives, tally)
            pending = next(arrivals, None)
        plan = scheduler.schedule(now)
        if plan is None:
            if pending is None and not scheduler.has_work:
                break  # the last to come were refused
            now = _next_event(scheduler, pending, now)
            continue
        if on_step is not None:
            on_step(now, plan)
        _start(plan, lives, tally, now)
        if plan.chunks:
            step_s = cost_model.step_s(plan)
            now += step_s
            tally.busy_s += step_s
        scheduler.update(plan, list(_sample(plan, lives, tally, now)))
    return _report(scheduler, tally, now)


def _arrive(scheduler: Scheduler, request: SimulatedRequest, lives: dict[str, _Life], tally: _Tally) -> None:
    request_id = f"r{len(lives)}"
    lives[request_id] = _Life(request)
    try:
        scheduler.add(
            Request(
                request_id=request_id,
                prompt_len=request.prompt_len,
                max_tokens=request.output_len,
                priority=request.priority,
                arrival_s=request.arrival_s,
                deadline_s=request.deadline_s,
                client=request.client,
                model=request.model,
                block_content=_contents(request, request_id, scheduler.config.block_size),
            )
        )
    except (QueueFullError, RequestTooLongError):
        tally.num_refused += 1


def _contents(request: SimulatedRequest, request_id: str, block_size: int) -> BlockContent:
    """Names that are as equal as the tokens would be."""
    num_shared = request.shared_len // block_size
    return lambda index: b"shared %d" % index if index < num_shared else f"{request_id} {index}".encode()


def _next_event(scheduler: Scheduler, pending: SimulatedRequest | None, now: float) -> float:
    """Nothing to do at `now`: when is there?"""
    moments = [moment for moment in (scheduler.next_deadline(now),) if moment is not None]
    if pending is not None:
        moments.append(pending.arrival_s)
    assert moments and min(moments) > now, f"stalled at {now} s: {scheduler.stats()}"
    return min(moments)


def _start(plan: StepPlan, lives: dict[str, _Life], tally: _Tally, now: float) -> None:
    tally.num_expired += len(plan.expired)
    if plan.chunks:
        tally.sizes[len(plan.chunks)] += 1
        tally.num_tokens += plan.num_tokens
        tally.num_slots += plan.num_slots
    if plan.cut is not None:
        tally.reasons[plan.cut.reason] += 1
    for chunk in plan.chunks:
        life = lives[chunk.request_id]
        if life.started_s is None:
            life.started_s = now
        end = chunk.start + chunk.num_tokens
        tally.num_recomputed += max(0, min(life.num_computed, end) - chunk.start)
        life.num_computed = max(life.num_computed, end)


def _sample(plan: StepPlan, lives: dict[str, _Life], tally: _Tally, now: float) -> Iterator[str]:
    """One token for each chunk that samples; yields the ids of those that have all they want."""
    for chunk in plan.chunks:
        if not chunk.samples:
            continue
        life = lives[chunk.request_id]
        life.num_sampled += 1
        if life.num_sampled == 1:
            life.first_token_s = now
        if life.num_sampled == life.request.output_len:
            life.done_s = now
            tally.done.append(life)
            yield chunk.request_id


def _report(scheduler: Scheduler, tally: _Tally, now: float) -> SimulationReport:
    stats = scheduler.stats()
    done = tally.done
    return SimulationReport(
        num_done=len(done),
        num_refused=tally.num_refused,
        num_expired=tally.num_expired,
        makespan_s=now,
        output_tokens=sum(life.num_sampled for life in done),
        num_recomputed=tally.num_recomputed,
        num_preemptions=stats.num_preemptions,
        num_query_tokens=stats.prefix_query_tokens,
        num_hit_tokens=stats.prefix_hit_tokens,
        num_steps=stats.num_steps,
        mean_batch=stats.mean_batch,
        busy_s=tally.busy_s,
        num_tokens=tally.num_tokens,
        num_slots=tally.num_slots,
        reasons=dict(tally.reasons),
        sizes=dict(sorted(tally.sizes.items())),
        ttft=Percentiles.of([life.first_token_s - life.request.arrival_s for life in done]),
        e2e=Percentiles.of([life.done_s - life.request.arrival_s for life in done]),
        waiting=Percentiles.of([(life.started_s or 0.0) - life.request.arrival_s for life in done]),
    )
