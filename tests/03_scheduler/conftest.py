"""A pretended engine: drives any scheduler step by step and checks everything that must hold at every step."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from aie_scheduler import ContinuousBatcher, Request, Scheduler, SchedulerConfig, StepPlan


class Driver:
    """Runs plans against its own simple idea of each request, and fails when a scheduler's idea differs."""

    def __init__(self, make: Callable[..., Any] = ContinuousBatcher, **config: Any) -> None:
        defaults: dict[str, Any] = {
            "max_batch_size": 8,
            "max_batch_tokens": 32,
            "block_size": 4,
            "num_blocks": 64,
            "max_seq_len": 256,
        }
        self.config = SchedulerConfig(**(defaults | config))
        self.scheduler: Any = make(self.config)
        assert isinstance(self.scheduler, Scheduler)
        self.now = 0.0
        self.steps: list[StepPlan] = []
        self.prompt: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.sampled: dict[str, int] = {}
        self.first_step: dict[str, int] = {}
        self.ended: dict[str, str] = {}  # request → how

    def add(self, request_id: str, prompt_len: int, output_len: int, **fields: Any) -> None:
        fields.setdefault("max_tokens", output_len)
        fields.setdefault("arrival_s", self.now)
        self.scheduler.add(Request(request_id=request_id, prompt_len=prompt_len, **fields))
        self.prompt[request_id], self.wanted[request_id] = prompt_len, output_len
        self.computed[request_id] = self.sampled[request_id] = 0

    def cancel(self, request_id: str) -> bool:
        known = self.scheduler.cancel(request_id)
        assert known == (request_id in self.prompt and request_id not in self.ended), request_id
        if known:
            self.end(request_id, "cancelled")
        return known

    def end(self, request_id: str, how: str) -> None:
        assert request_id not in self.ended, f"{request_id} ended twice: {self.ended[request_id]} and {how}"
        self.ended[request_id] = how

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule(self.now)
        if plan is None:
            return None
        for request_id in plan.expired:
            self.end(request_id, "expired")
        for lost in plan.preempted:
            assert self.computed[lost.request_id] == lost.lost_tokens > 0, f"{lost}, not {self.computed}"
            self.computed[lost.request_id] = 0
        self.check(plan)
        return plan

    def check(self, plan: StepPlan) -> None:
        config, ids = self.config, [chunk.request_id for chunk in plan.chunks]
        assert len(ids) == len(set(ids)) <= config.max_batch_size, ids
        assert plan.num_tokens <= config.max_batch_tokens, plan
        assert not {*ids} & ({*plan.expired} | {lost.request_id for lost in plan.preempted} | {*self.ended}), plan
        held: list[int] = []
        for chunk in plan.chunks:
            request_id, end = chunk.request_id, chunk.start + chunk.num_tokens
            known = self.prompt[request_id] + self.sampled[request_id]
            assert chunk.start == self.computed[request_id], (chunk, self.computed[request_id])
            assert 0 < chunk.num_tokens <= known - chunk.start, (chunk, known)
            assert chunk.samples == (end == known), (chunk, known)
            if self.scheduler.allocator.num_blocks:
                assert len(chunk.block_table) * config.block_size >= end, f"no block for the last token of {chunk}"
            held += chunk.block_table
        assert len(held) == len(set(held)), f"a block is in two tables: {plan}"

    def finish(self, plan: StepPlan, early: Collection[str] = ()) -> list[str]:
        finished = []
        for chunk in plan.chunks:
            if chunk.request_id in self.ended:
                continue  # cancelled while the step ran
            self.first_step.setdefault(chunk.request_id, len(self.steps))
            self.computed[chunk.request_id] += chunk.num_tokens
            self.sampled[chunk.request_id] += chunk.samples
            if self.sampled[chunk.request_id] == self.wanted[chunk.request_id] or chunk.request_id in early:
                finished.append(chunk.request_id)
        self.scheduler.update(plan, finished)
        self.steps.append(plan)
        for request_id in finished:
            self.end(request_id, "done")
        return finished

    def step(self) -> StepPlan | None:
        plan = self.schedule()
        if plan is not None:
            self.finish(plan)
        return plan

    def run(self, max_steps: int = 10_000) -> list[StepPlan]:
        first = len(self.steps)
        for _ in range(max_steps):
            if self.step() is None:
                moment = self.scheduler.next_deadline(self.now)
                if moment is None:
                    break
                assert moment > self.now, f"stalled: {self.scheduler.stats()}"
                self.now = moment
        else:
            pytest.fail(f"still at work after {max_steps} steps: {self.scheduler.stats()}")
        self.check_empty()
        return self.steps[first:]

    def check_empty(self) -> None:
        stats = self.scheduler.stats()
        assert not self.scheduler.has_work
        assert (stats.num_waiting, stats.num_running) == (0, 0), stats
        assert stats.num_free_blocks == stats.num_blocks, stats
        assert {*self.ended} == {*self.prompt}


@pytest.fixture
def make_driver() -> type[Driver]:
    return Driver
