"""The simulator: a virtual clock whose arithmetic can be done by hand."""

import pytest

from aie_scheduler import (
    ContinuousBatcher,
    CostModel,
    DynamicBatcher,
    PassThrough,
    Percentiles,
    SchedulerConfig,
    SimulatedRequest,
    SimulationReport,
    Workload,
    simulate,
)

COST = CostModel(step_overhead_s=1.0, per_prefill_token_s=0.1, per_decode_seq_s=0.01)
CONFIG = SchedulerConfig(num_blocks=256, max_seq_len=1024, max_batch_size=8, max_queue=1000)


def test_one_request_costs_what_the_model_says() -> None:
    report = simulate(PassThrough(CONFIG), Workload([SimulatedRequest(2.0, 10, 3)]), COST)
    first, rest = 1.0 + 1.0, 2 * 1.01
    assert report.ttft.p50 == pytest.approx(first)
    assert report.e2e.p99 == pytest.approx(first + rest)
    assert report.waiting.mean == 0.0
    assert report.makespan_s == pytest.approx(2.0 + first + rest)
    assert (report.num_done, report.output_tokens, report.num_steps) == (1, 3, 3)


def test_waiting_is_counted_from_arrival_to_the_first_step() -> None:
    report = simulate(PassThrough(CONFIG), Workload([SimulatedRequest(0.0, 10, 1), SimulatedRequest(0.5, 10, 1)]), COST)
    assert report.waiting.p99 == pytest.approx(2.0 - 0.5)
    assert report.ttft.p99 == pytest.approx(4.0 - 0.5)


def test_padding_costs_a_rectangle() -> None:
    workload = Workload([SimulatedRequest(0.0, 10, 1), SimulatedRequest(0.0, 30, 1)])
    padded = CostModel(step_overhead_s=1.0, per_prefill_token_s=0.1, per_decode_seq_s=0.0, pads_prefill=True)
    assert simulate(ContinuousBatcher(CONFIG), workload, padded).makespan_s == pytest.approx(1.0 + 6.0)


def test_recomputed_tokens_are_counted() -> None:
    """Two of 8 + 24 tokens in 40 places: when both have 20 in the cache and want a 21st, one gives up its 20."""
    config = SchedulerConfig(num_blocks=10, block_size=4, max_seq_len=64, max_batch_size=4, prefix_caching=False)
    scheduler = ContinuousBatcher(config)
    report = simulate(scheduler, Workload([SimulatedRequest(0.0, 8, 24)] * 2), COST)
    assert (report.num_preemptions, report.num_recomputed, report.num_done) == (1, 20, 2)
    assert scheduler.stats().num_recomputed_tokens == 20


def test_refused_and_expired_are_counted_and_everybody_ends() -> None:
    config = SchedulerConfig(num_blocks=256, max_seq_len=64, max_batch_size=1, max_queue=3)
    requests = [SimulatedRequest(0.0, 8, 4, deadline_s=3.0) for _ in range(6)] + [SimulatedRequest(0.0, 90, 1)]
    report = simulate(ContinuousBatcher(config), Workload(requests), COST)
    assert report.num_refused == 4
    assert report.num_done + report.num_expired == 3
    assert report.num_expired == 3  # a request takes 1.8 + 3 × 1.01 seconds: nobody makes it


def test_workload_is_repeatable_and_skewed() -> None:
    def draw(seed: int) -> Workload:
        return Workload.poisson(
            seed=seed, num_requests=2000, rate_per_s=10.0, prompt_median=50, output_median=20, max_len=400
        )

    assert draw(1) == draw(1) != draw(2)
    prompts = Percentiles.of([request.prompt_len for request in draw(1).requests])
    assert prompts.p50 == pytest.approx(50, rel=0.1)
    assert prompts.mean > prompts.p50
    assert draw(1).requests[-1].arrival_s == pytest.approx(200.0, rel=0.1)


def test_percentiles_are_values_that_occurred() -> None:
    assert Percentiles.of([4.0, 1.0, 3.0, 2.0]) == Percentiles(2.0, 4.0, 2.5)
    assert Percentiles.of([]) == Percentiles(0.0, 0.0, 0.0)


def test_continuous_batching_brings_what_it_promises() -> None:
    """Under the same traffic: at batch size 1 all schedulers are alike; then continuous beats static beats none."""
    workload = Workload.poisson(
        seed=3, num_requests=200, rate_per_s=20.0, prompt_median=40, output_median=30, max_len=200
    )
    cost = CostModel(step_overhead_s=6e-3, per_prefill_token_s=7e-4, per_decode_seq_s=9e-4)

    def run(size: int, kind: str) -> SimulationReport:
        config = SchedulerConfig(
            num_blocks=1024, max_seq_len=512, max_queue=200, max_batch_size=size, max_batch_tokens=512
        )
        if kind == "static":
            return simulate(DynamicBatcher(config, generates=True), workload, cost)
        return simulate(ContinuousBatcher(config) if kind == "continuous" else PassThrough(config), workload, cost)

    alone = run(1, "pass-through")
    assert run(1, "continuous").output_tokens_per_s == pytest.approx(alone.output_tokens_per_s, rel=0.05)
    static, continuous = run(16, "static"), run(16, "continuous")
    assert continuous.output_tokens_per_s > 1.2 * static.output_tokens_per_s > 1.2 * alone.output_tokens_per_s
    assert continuous.waiting.p50 < static.waiting.p50 < alone.waiting.p50
    sizes = [run(size, "continuous").output_tokens_per_s for size in (1, 2, 4, 8)]
    assert sizes == sorted(sizes)


def test_a_shared_beginning_is_computed_once() -> None:
    workload = Workload([SimulatedRequest(float(index), 10, 1) for index in range(3)]).with_shared_prefix(32)
    report = simulate(
        ContinuousBatcher(CONFIG),
        workload,
        CostModel(step_overhead_s=1e-3, per_prefill_token_s=0.0, per_decode_seq_s=0.0),
    )
    assert (report.num_query_tokens, report.num_hit_tokens, report.num_tokens) == (3 * 42, 2 * 32, 42 + 2 * 10)
    assert report.hit_share == pytest.approx(64 / 126)
