"""Checks exercises 2 and 3 of stages/03_scheduler/README.md; each is skipped until you have written your solution."""

from typing import Any

import pytest

from aie_scheduler import ContinuousBatcher, CostModel, SchedulerConfig, Workload, simulate

exercise = pytest.importorskip(
    "aie_scheduler.exercise", reason="exercises 2 and 3 live in stages/03_scheduler/aie_scheduler/exercise.py"
)
COST = CostModel(step_overhead_s=6e-3, per_prefill_token_s=7e-4, per_decode_seq_s=9e-4)


def solution(name: str) -> Any:
    if not hasattr(exercise, name):
        pytest.skip(f"write {name} in exercise.py")
    return getattr(exercise, name)


def test_reserving_for_all_that_may_come_preempts_nobody() -> None:
    workload = Workload.poisson(
        seed=0, num_requests=200, rate_per_s=20.0, prompt_median=200, output_median=64, max_len=900
    )
    config = SchedulerConfig(max_batch_size=32, num_blocks=160, max_seq_len=2048, max_queue=200)
    plain = simulate(ContinuousBatcher(config), workload, COST)
    reserving = simulate(solution("Reserving")(config), workload, COST)
    assert reserving.num_done == plain.num_done == 200
    assert reserving.num_preemptions == reserving.num_recomputed == 0 < plain.num_preemptions
    assert reserving.mean_batch < plain.mean_batch, "this is the price: fewer run at once"


def test_shortest_first_halves_the_typical_wait_and_loses_nobody() -> None:
    workload = Workload.poisson(
        seed=5, num_requests=300, rate_per_s=12.0, prompt_median=48, output_median=32, max_len=400
    )
    config = SchedulerConfig(max_batch_size=8, num_blocks=1024, max_seq_len=1024, max_queue=300)
    fair = simulate(ContinuousBatcher(config), workload, COST)
    shortest = simulate(solution("ShortestFirst")(config), workload, COST)
    assert shortest.num_done == fair.num_done == 300
    assert shortest.waiting.p50 < fair.waiting.p50 / 2
    assert shortest.waiting.p99 > fair.waiting.p99, "somebody has to pay: who, and is that fair?"
