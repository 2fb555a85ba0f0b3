"""Random lives: hypothesis adds, cancels, steps, lets time pass, and looks for a moment when an invariant breaks.

The driver checks every plan; here, after every rule: nobody holds a block without being alive, no block is in two
tables, counts add up, and as long as there is work, there is progress. At the end every request has ended exactly once
and every block is free.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from aie_scheduler import ContinuousBatcher, DynamicBatcher, PassThrough, QueueFullError, SequenceStatus

NUM_BLOCKS, BLOCK_SIZE, MAX_LEN = 12, 4, 48
GENERATORS = {
    "continuous": ContinuousBatcher,
    "pass-through": PassThrough,
    "static": lambda config: DynamicBatcher(config, generates=True),
}


class Lives(RuleBasedStateMachine):
    make_driver: Any
    make: Any

    def __init__(self) -> None:
        super().__init__()
        self.driver = self.make_driver(
            self.make,
            max_batch_size=4,
            max_batch_tokens=MAX_LEN,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_seq_len=MAX_LEN,
            max_queue=6,
            bucket_edges=(8, 24),
            max_wait_ms=1000.0,
            max_bypass=3,
        )
        self.names = 0

    def alive(self) -> list[str]:
        return [name for name in self.driver.prompt if name not in self.driver.ended]

    @rule(
        prompt_len=st.integers(1, MAX_LEN - 1),
        output_len=st.integers(1, MAX_LEN),
        stops_early=st.booleans(),
        priority=st.integers(-1, 1),
        patience_s=st.none() | st.integers(0, 20),
        client=st.sampled_from(["", "a", "b"]),
    )
    def add(
        self, prompt_len: int, output_len: int, stops_early: bool, priority: int, patience_s: int | None, client: str
    ) -> None:
        name, driver = f"r{self.names}", self.driver
        max_tokens = min(output_len, MAX_LEN - prompt_len)
        deadline_s = None if patience_s is None else driver.now + patience_s
        wanted = (max_tokens + 1) // 2 if stops_early else max_tokens  # an end-of-sequence token comes before the limit
        waiting = driver.scheduler.stats().num_waiting
        try:
            driver.add(
                name,
                prompt_len,
                wanted,
                max_tokens=max_tokens,
                priority=priority,
                deadline_s=deadline_s,
                client=client,
            )
        except QueueFullError:
            assert waiting >= 6
            return
        assert waiting < 6
        self.names += 1

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.driver.cancel(data.draw(st.sampled_from(self.alive())))

    @rule(num_steps=st.integers(1, 12))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    @rule(data=st.data())
    def cancel_while_a_step_runs(self, data: st.DataObject) -> None:
        plan = self.driver.schedule()
        if plan is None:
            return
        if alive := self.alive():
            self.driver.cancel(data.draw(st.sampled_from(alive)))
        self.driver.finish(plan)

    @rule(seconds=st.integers(1, 8))
    def time_passes(self, seconds: int) -> None:
        self.driver.now += seconds

    def step(self) -> None:
        plan = self.driver.step()
        moment = self.driver.scheduler.next_deadline(self.driver.now)
        if plan is None:
            assert moment is None or moment > self.driver.now, "a scheduler with work to do did nothing"
            assert self.make is GENERATORS["static"] or not self.driver.scheduler.has_work
        else:
            assert plan.chunks or plan.expired, f"no progress: {plan}"

    @invariant()
    def books_balance(self) -> None:
        scheduler, alive = self.driver.scheduler, self.alive()
        states = [scheduler.state_of(name) for name in alive]
        assert None not in states
        tables = [state.block_table for state in states]
        held = [block for table in tables for block in table]
        stats = scheduler.stats()
        assert len(held) == len(set(held)), f"a block is in two tables: {tables}"
        assert len(held) + stats.num_free_blocks == NUM_BLOCKS, "a block is lost"
        assert all(scheduler.allocator.owner_of(block) == s.request_id for s in states for block in s.block_table)
        assert all(bool(state.block_table) == (state.status is SequenceStatus.RUNNING) for state in states)
        assert stats.num_waiting + stats.num_running == len(alive)
        assert stats.num_running <= 4

    def teardown(self) -> None:
        self.driver.run(max_steps=2000)
        assert all(how in ("done", "cancelled", "expired") for how in self.driver.ended.values())


@pytest.mark.parametrize("name", GENERATORS)
def test_every_life_ends_once_and_leaves_nothing_behind(make_driver: Any, name: str) -> None:
    machine = type("Machine", (Lives,), {"make_driver": make_driver, "make": staticmethod(GENERATORS[name])})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
