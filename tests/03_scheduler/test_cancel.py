"""Cancelling at every moment of a request's life, the awkward ones above all."""

from typing import Any

import pytest

from aie_scheduler import ContinuousBatcher, DynamicBatcher, PassThrough

makes = pytest.mark.parametrize(
    "make",
    [ContinuousBatcher, PassThrough, lambda config: DynamicBatcher(config, generates=True)],
    ids=["continuous", "pass-through", "static"],
)


@makes
def test_cancel_frees_blocks_at_once(make_driver: Any, make: Any) -> None:
    driver = make_driver(make, max_wait_ms=0.0)
    driver.add("a", 10, 10)
    driver.add("b", 10, 10)
    driver.step()
    driver.cancel("a")
    driver.cancel("b")
    driver.check_empty()
    assert driver.scheduler.schedule(1.0) is None


def test_unknown_id_is_false(make_driver: Any) -> None:
    assert make_driver().scheduler.cancel("nobody") is False


@makes
def test_cancel_between_schedule_and_update(make_driver: Any, make: Any) -> None:
    """The step's view of the block table stays whole, and recording the step does not bring the request back."""
    driver = make_driver(make, max_wait_ms=0.0)
    driver.add("a", 10, 10)
    driver.add("b", 10, 10)
    plan = driver.schedule()
    chunk = plan.chunks[0]
    table = list(chunk.block_table)
    assert table
    driver.cancel("a")
    assert chunk.block_table == table
    assert driver.scheduler.state_of("a") is None
    driver.finish(plan)
    assert driver.scheduler.state_of("a") is None
    driver.run()
    assert driver.ended == {"a": "cancelled", "b": "done"}


def test_cancelled_id_reused_within_the_step_starts_from_nothing(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 10, 10)
    plan = driver.schedule()
    driver.scheduler.cancel("a")
    driver.add("a", 10, 10)
    driver.scheduler.update(plan, ["a"])  # speaks of the first a
    state = driver.scheduler.state_of("a")
    assert (state.num_tokens, state.num_computed) == (10, 0)
    driver.run()
    assert driver.sampled["a"] == 10


def test_finished_ids_outside_the_plan_are_released_and_unknown_ones_ignored(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=1)
    driver.add("a", 4, 3)
    driver.add("b", 4, 3)
    plan = driver.schedule()
    driver.scheduler.update(plan, ["b", "nobody"])
    assert driver.scheduler.state_of("b") is None
    assert driver.scheduler.state_of("a").num_sampled == 1


def test_cancel_while_preempted(make_driver: Any) -> None:
    driver = make_driver(num_blocks=10)
    driver.add("a", 8, 24)
    driver.add("b", 8, 24)
    while not driver.step().preempted:
        pass
    driver.cancel("b")
    driver.run()
    assert driver.ended == {"b": "cancelled", "a": "done"}


@makes
def test_cancelled_requests_leave_no_trace(make_driver: Any, make: Any) -> None:
    """A storm of requests that come and go must not grow the deadline heap, the queue or anything else."""
    driver = make_driver(make, max_wait_ms=1e6)
    for index in range(2000):
        driver.add(f"r{index}", 4, 4, deadline_s=1e9)
        driver.cancel(f"r{index}")
    assert len(driver.scheduler._deadlines) < 100
    assert len(driver.scheduler._waiting) == 0
    driver.check_empty()
