"""The whole path of a prediction, at random: front queue, batcher, batch. Every request leaves exactly once.

Hypothesis puts requests in, cancels them wherever they stand, lets the batching loop run and time pass. After every
rule: no bound is exceeded and the books balance. After every batch: one model, one bucket, no more than allowed, and
whoever is not in it had a reason. At the end everybody was batched, cancelled, expired, dropped or refused, once.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from aie_scheduler import FrontQueue, QueueFullError, Request, SchedulerConfig, make_scheduler

MAX_FRONT, MAX_QUEUE, MAX_LEN, MAX_WAIT_S = 3, 8, 48, 2.0
SETTINGS: dict[str, dict[str, Any]] = {
    "two thresholds": {"buckets": "off"},
    "buckets, padded to their edge": {"bucket_edges": (8, 24), "padding": "bucket"},
    "packed, preferred sizes": {"buckets": "off", "padding": "packed", "preferred_sizes": (2, 4)},
    "adaptive, quantiles": {"buckets": "quantiles", "num_buckets": 3, "adaptive_wait": True},
    "static": {"policy": "static"},
    "pass-through": {"policy": "passthrough"},
}


@dataclass
class Life:
    """What the world knows of a request."""

    request: Request
    put_s: float
    fates: list[str] = field(default_factory=list)


class WholePath(RuleBasedStateMachine):
    overflow: Any
    options: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.config = SchedulerConfig(
            **{
                "policy": "dynamic",
                "num_blocks": 0,
                "max_seq_len": MAX_LEN,
                "max_batch_size": 5,
                "max_batch_tokens": 100,
                "max_queue": MAX_QUEUE,
                "max_wait_ms": MAX_WAIT_S * 1e3,
                "max_bypass": 6,
            }
            | self.options
        )
        self.scheduler: Any = make_scheduler(self.config, generates=False)
        self.front: FrontQueue[Request] = FrontQueue(MAX_FRONT, overflow=self.overflow, clock=lambda: self.now)
        self.lives: dict[str, Life] = {}
        self.in_scheduler: set[str] = set()
        self.passed: Counter[str] = Counter()  # requests of lower rank batched while this one was overdue

    def leaves(self, request_id: str, fate: str) -> None:
        life = self.lives[request_id]
        life.fates.append(fate)
        assert len(life.fates) == 1, f"{request_id} left twice: {life.fates}"
        self.in_scheduler.discard(request_id)

    def alive(self) -> list[str]:
        return [name for name, life in self.lives.items() if not life.fates]

    @rule(
        length=st.integers(1, MAX_LEN),
        priority=st.integers(0, 2),
        patience_s=st.none() | st.floats(0.0, 6.0),
        client=st.sampled_from("abc"),
        model=st.sampled_from("xy"),
    )
    def put(self, length: int, priority: int, patience_s: float | None, client: str, model: str) -> None:
        name = f"r{len(self.lives)}"
        request = Request(
            request_id=name,
            prompt_len=length,
            max_tokens=1,
            priority=priority,
            arrival_s=self.now,
            deadline_s=None if patience_s is None else self.now + patience_s,
            client=client,
            model=model,
        )
        self.lives[name] = Life(request, self.now)
        was_full = len(self.front) == MAX_FRONT
        try:
            dropped = self.front.put(request, deadline_s=self.now)  # a producer that blocks has no time to: as rejected
        except QueueFullError:
            assert was_full and self.overflow != "drop-oldest"
            self.leaves(name, "refused")
            return
        assert (dropped is not None) == (was_full and self.overflow == "drop-oldest")
        if dropped is not None:
            self.leaves(dropped.request_id, "dropped")

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.alive()))
        in_front = self.front.remove(self.lives[name].request)
        assert in_front != self.scheduler.cancel(name), "it is in one of the two"
        self.leaves(name, "cancelled")

    @rule(seconds=st.floats(0.001, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(num_steps=st.integers(1, 6))
    def loop_runs(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.turn()

    @rule()
    def loop_waits_for_its_moment(self) -> None:
        """As the loop does: sleep exactly until `next_deadline`, then there must be something to do."""
        self.fetch()
        moment = self.scheduler.next_deadline(self.now)
        if moment is not None:
            self.now = max(self.now, moment)
            assert self.step(), "woken for nothing"

    def turn(self) -> None:
        self.fetch()
        self.step()

    def fetch(self) -> None:
        for request in self.front.take(until_s=self.now, max_items=self.scheduler.num_free):
            self.scheduler.add(request)
            self.in_scheduler.add(request.request_id)

    def step(self) -> bool:
        waiting = {name: self.lives[name].request for name in self.in_scheduler}
        plan = self.scheduler.schedule(self.now)
        if plan is None:
            assert self.config.policy == "passthrough" or not self.overdue(waiting), "somebody overdue, and no batch"
            assert self.config.policy != "passthrough" or not waiting
            return False
        for name in plan.expired:
            deadline_s = waiting.pop(name).deadline_s
            assert deadline_s is not None and deadline_s <= self.now
            self.leaves(name, "expired")
        batch = [waiting.pop(chunk.request_id) for chunk in plan.chunks]
        if batch:
            self.check(batch, plan, waiting)
        self.scheduler.update(plan, ())
        for request in batch:
            self.leaves(request.request_id, "batched")
        return True

    def overdue(self, waiting: dict[str, Request]) -> list[Request]:
        patience_s = 1.0 if self.config.policy == "static" else MAX_WAIT_S
        return [request for request in waiting.values() if request.arrival_s + patience_s <= self.now]

    def check(self, batch: list[Request], plan: Any, waiting: dict[str, Request]) -> None:
        config = self.config
        assert len(batch) <= (1 if config.policy == "passthrough" else config.max_batch_size)
        assert all(request.deadline_s is None or request.deadline_s > self.now for request in batch), "too late"
        if plan.cut is not None:
            assert len({request.model for request in batch}) == 1
            assert plan.cut.num_slots <= config.max_batch_tokens
            assert plan.cut.num_tokens == sum(request.prompt_len for request in batch)
            assert max(request.prompt_len for request in batch) <= plan.cut.bucket_edge
        for request in self.overdue(waiting):
            # No starvation: of those that came later, only so many go before one that is overdue.
            self.passed[request.request_id] += sum(
                other.arrival_s > request.arrival_s or other.priority > request.priority for other in batch
            )
            assert self.passed[request.request_id] <= 4 * (config.max_bypass + config.max_batch_size + MAX_QUEUE)

    @invariant()
    def bounds_hold_and_books_balance(self) -> None:
        stats = self.scheduler.stats()
        assert len(self.front) <= MAX_FRONT
        assert stats.num_waiting <= MAX_QUEUE
        assert stats.num_running == 0
        assert stats.num_waiting == len(self.in_scheduler)
        assert len(self.front) + stats.num_waiting == len(self.alive())

    def teardown(self) -> None:
        """The server drains: no new request, and everybody who is in gets an answer."""
        self.scheduler.drain()
        for _ in range(200):
            if not self.alive():
                break
            self.turn()
        assert not self.alive(), "somebody is never served"
        assert not self.scheduler.has_work
        assert self.front.close() == []
        fates = Counter(fate for life in self.lives.values() for fate in life.fates)
        assert sum(fates.values()) == len(self.lives)
        assert set(fates) <= {"batched", "cancelled", "expired", "dropped", "refused"}


@pytest.mark.parametrize("overflow", ["reject", "block", "drop-oldest"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_request_leaves_exactly_once(monkeypatch: pytest.MonkeyPatch, name: str, overflow: str) -> None:
    monkeypatch.setattr("aie_scheduler.buckets.RELEARN_EVERY", 4)  # so that edges move while people wait
    machine = type("Machine", (WholePath,), {"overflow": overflow, "options": SETTINGS[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
