"""Who loses its blocks, to whom, and what that costs."""

from typing import Any

import pytest

from aie_scheduler import BlockAllocator, ContinuousBatcher, CostModel, SchedulerConfig, Workload, simulate
from aie_scheduler.request import Request, SequenceState
from aie_scheduler.victims import choose_victim


def holder(name: str, allocator: BlockAllocator, num_computed: int, shared: list[int] | None = None) -> SequenceState:
    state = SequenceState.of(Request(request_id=name, prompt_len=100, max_tokens=100), 0)
    state.num_computed = num_computed
    if shared:
        allocator.share(shared, name)
        state.block_table += shared
    state.block_table += allocator.allocate(-(-num_computed // 4) - len(state.block_table), name)
    return state


def test_the_one_who_loses_least_and_of_equals_the_last() -> None:
    allocator = BlockAllocator(64)
    states = [holder(name, allocator, num) for name, num in (("a", 40), ("b", 9), ("c", 12), ("d", 9))]
    assert choose_victim(states, allocator, 4) is states[3]
    assert choose_victim(states[:3], allocator, 4) is states[1]


def test_what_is_shared_is_not_lost() -> None:
    allocator = BlockAllocator(64)
    first = holder("a", allocator, 42)
    shared = holder("b", allocator, 46, first.block_table[:10])  # six tokens of its own
    alone = holder("c", allocator, 7)
    assert choose_victim([shared, alone], allocator, 4) is shared


def test_who_would_free_nothing_is_no_victim() -> None:
    allocator = BlockAllocator(64)
    first = holder("a", allocator, 40)
    second = holder("b", allocator, 40, list(first.block_table))
    assert choose_victim([first, second], allocator, 4) is None


def test_the_cheaper_of_those_behind_is_preempted_and_named(make_driver: Any) -> None:
    driver = make_driver(num_blocks=20, max_seq_len=128)
    driver.add("a", 8, 60)
    driver.add("small", 4, 60)
    driver.add("big", 20, 60)
    while not (plan := driver.step()).preempted:
        pass
    (lost,) = plan.preempted
    assert (lost.request_id, lost.by) == ("small", "a")
    assert lost.lost_tokens == driver.prompt["small"] + driver.sampled["small"] - 1
    driver.run()
    assert driver.sampled == {"a": 60, "small": 60, "big": 60}


def test_nobody_of_better_rank_loses_anything(make_driver: Any) -> None:
    driver = make_driver(num_blocks=14, max_seq_len=128, max_batch_size=6, max_queue=64)
    for index in range(20):
        driver.add(f"r{index}", 4 + index % 7, 20 + index % 11, priority=index % 3)
    order = {name: driver.scheduler.state_of(name).rank for name in driver.prompt}
    plans = driver.run()
    lost = [lost for plan in plans for lost in plan.preempted]
    assert lost
    assert all(order[one.by] <= order[one.request_id] for one in lost)


def test_room_to_grow_and_cheap_victims_spare_most_of_the_recomputation() -> None:
    """Without either, this workload was preempted 61 times and computed 15618 tokens again."""
    workload = Workload.poisson(
        seed=0, num_requests=200, rate_per_s=20.0, prompt_median=200, output_median=64, max_len=900
    )
    config = SchedulerConfig(max_batch_size=32, num_blocks=160, max_seq_len=2048, max_queue=200)
    cost = CostModel(step_overhead_s=6e-3, per_prefill_token_s=7e-4, per_decode_seq_s=9e-4)
    scheduler = ContinuousBatcher(config)
    report = simulate(scheduler, workload, cost)
    assert report.num_done == 200
    assert report.num_preemptions < 10
    assert report.num_recomputed < 2000
    assert scheduler.stats().num_recomputed_tokens == report.num_recomputed


@pytest.mark.parametrize("num_blocks", [9, 12, 17])
def test_blocks_are_kept_free_for_those_who_run(make_driver: Any, num_blocks: int) -> None:
    """A newcomer is let in when those who run can take two blocks more each, or all they can ever need."""
    driver = make_driver(num_blocks=num_blocks, max_seq_len=33)
    for index in range(6):
        driver.add(f"r{index}", 6, 26)
    while driver.scheduler.has_work:
        running = {name: driver.scheduler.state_of(name) for name in driver.prompt if name not in driver.ended}
        before = [state for state in running.values() if state.block_table]
        plan = driver.step()
        if plan.admitted and before:
            left = driver.scheduler.stats().num_free_blocks
            assert left >= min(2 * len(before), sum(8 - len(state.block_table) for state in before)) or plan.expired
    driver.check_empty()
