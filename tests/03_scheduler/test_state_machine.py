"""Random lives: hypothesis adds, cancels, steps, spoils steps, guesses, lets time pass, and looks for a moment when an
invariant breaks.

Prompts are drawn from a few texts, so that beginnings are shared, and continue finished conversations. The driver
checks every plan; here, after every rule: nobody holds a block without being alive, every block is free or held by
those whose tables it is in, what the prefix cache promises is really in the KV cache, counts add up, and as long as
there is work, there is progress. At the end every request has ended exactly once and every block is free.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from aie_scheduler import ContinuousBatcher, DynamicBatcher, PassThrough, QueueFullError, SequenceStatus

NUM_BLOCKS, BLOCK_SIZE, MAX_LEN, MAX_RUNNING = 12, 4, 48, 4
TEXTS = [[Random(seed).randrange(50) for _ in range(MAX_LEN)] for seed in range(2)]
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
            max_batch_size=MAX_RUNNING,
            max_batch_tokens=MAX_LEN,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_seq_len=MAX_LEN,
            max_queue=6,
            max_prefill_tokens=8,
            bucket_edges=(8, 24),
            max_wait_ms=1000.0,
            max_bypass=3,
        )
        self.names = 0

    def alive(self) -> list[str]:
        return [name for name in self.driver.prompt if name not in self.driver.ended]

    @rule(
        prompt_len=st.integers(1, MAX_LEN - 1),
        shared_len=st.integers(0, MAX_LEN),
        text=st.sampled_from([0, 0, 1]),
        continues=st.booleans(),
        output_len=st.integers(1, MAX_LEN),
        stops_early=st.booleans(),
        priority=st.integers(-1, 1),
        patience_s=st.none() | st.integers(0, 20),
        client=st.sampled_from(["", "a", "b"]),
        salt=st.sampled_from(["", "", "", "x"]),
    )
    def add(
        self,
        prompt_len: int,
        shared_len: int,
        text: int,
        continues: bool,
        output_len: int,
        stops_early: bool,
        priority: int,
        patience_s: int | None,
        client: str,
        salt: str,
    ) -> None:
        name, driver = f"r{self.names}", self.driver
        beginning = TEXTS[text]
        if continues and driver.ended:
            beginning = driver.tokens[[*driver.ended][-1]]
        tokens = beginning[: min(shared_len, prompt_len)]
        tokens = tokens + [1000 * (self.names + 1) + index for index in range(len(tokens), prompt_len)]
        max_tokens = min(output_len, MAX_LEN - prompt_len)
        deadline_s = None if patience_s is None else driver.now + patience_s
        wanted = (max_tokens + 1) // 2 if stops_early else max_tokens  # an end-of-sequence token comes before the limit
        waiting = driver.scheduler.stats().num_waiting
        try:
            driver.add(
                name,
                prompt_len,
                wanted,
                tokens=tokens,
                max_tokens=max_tokens,
                priority=priority,
                deadline_s=deadline_s,
                client=client,
                cache_salt=salt,
            )
        except QueueFullError:
            assert waiting >= 6
            return
        assert waiting < 6
        self.names += 1

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), how=st.sampled_from(["cancelled", "failed"]))
    def cancel(self, data: st.DataObject, how: str) -> None:
        self.driver.cancel(data.draw(st.sampled_from(self.alive())), how)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), num_right=st.integers(0, 6), num_wrong=st.integers(0, 3))
    def guess(self, data: st.DataObject, num_right: int, num_wrong: int) -> None:
        for name in data.draw(st.lists(st.sampled_from(self.alive()), unique=True, max_size=4)):
            self.driver.propose(name, num_right, num_wrong)
        self.step()

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

    @rule(data=st.data())
    def one_request_of_a_step_goes_wrong(self, data: st.DataObject) -> None:
        plan = self.driver.schedule()
        if plan is None:
            return
        if plan.chunks:
            self.driver.spoil(plan, [data.draw(st.sampled_from([chunk.request_id for chunk in plan.chunks]))])
        self.driver.finish(plan)

    @rule()
    def a_step_goes_wrong_as_a_whole(self) -> None:
        plan = self.driver.schedule()
        if plan is not None:
            self.driver.spoil(plan, [chunk.request_id for chunk in plan.chunks])

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
        scheduler = self.driver.scheduler
        self.driver.check_books()
        states = [scheduler.state_of(name) for name in self.alive()]
        assert all(bool(state.block_table) == (state.status is SequenceStatus.RUNNING) for state in states)
        assert scheduler.stats().num_running <= MAX_RUNNING
        if isinstance(scheduler, ContinuousBatcher):
            self.driver.check_cache()
            assert all(state.awaits is None or state.awaits.leader is not None for state in states)

    def teardown(self) -> None:
        self.driver.run(max_steps=2000)
        assert all(how in ("done", "cancelled", "expired", "failed") for how in self.driver.ended.values())


@pytest.mark.parametrize("name", GENERATORS)
def test_every_life_ends_once_and_leaves_nothing_behind(make_driver: Any, name: str) -> None:
    machine = type("Machine", (Lives,), {"make_driver": make_driver, "make": staticmethod(GENERATORS[name])})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=150 if name == "continuous" else 40,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
