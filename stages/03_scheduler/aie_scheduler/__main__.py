"""Stage 3 by itself: what batching brings and what it costs. No model, no arrays, no network; a few seconds.

`python -m aie_scheduler`, `python stages/03_scheduler` and `aie stage 3` are the same.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from aie_scheduler.config import DEFAULT_BUCKET_EDGES, SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.demo_batching import show_batchers, show_fairness, show_waiting
from aie_scheduler.demo_sharing import show_long_prompt, show_prefix_cache
from aie_scheduler.dynamic import DynamicBatcher
from aie_scheduler.live import ByteReader, run_live
from aie_scheduler.measure import measure_batch_cost, measure_step_cost
from aie_scheduler.passthrough import PassThrough
from aie_scheduler.protocol import Scheduler
from aie_scheduler.report import SimulationReport
from aie_scheduler.simulator import CostModel, simulate
from aie_scheduler.timeline import Timeline
from aie_scheduler.workload import SimulatedRequest, Workload
from aie_tensor import run_program

BATCH_SIZES = (1, 2, 4, 8, 16, 32)


def main(argv: Sequence[str] | None = None) -> int:
    """Continuous batching first, then predictions and fair shares, then what it all costs and brings here."""
    parser = argparse.ArgumentParser(prog="aie_scheduler", description="Stage 3: requests into batches.")
    parser.add_argument("--requests", type=int, default=400, help="requests of the simulated workload (default 400)")
    parser.add_argument("--rate", type=float, default=7.0, help="arrivals per second (default 7)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the workload (default 0)")
    parser.add_argument("--step-ms", type=float, default=6.0, help="cost model: once per step (default 6)")
    parser.add_argument("--prefill-ms", type=float, default=0.7, help="cost model: per prompt token (default 0.7)")
    parser.add_argument("--decode-ms", type=float, default=0.9, help="cost model: per decoded token (default 0.9)")
    options = parser.parse_args(argv)
    cost_model = CostModel(
        step_overhead_s=options.step_ms / 1e3,
        per_prefill_token_s=options.prefill_ms / 1e3,
        per_decode_seq_s=options.decode_ms / 1e3,
    )
    show_steps(cost_model)
    show_batch_sizes(cost_model, num_requests=options.requests, rate_per_s=options.rate, seed=options.seed)
    show_prefix_cache(cost_model, options.seed)
    show_long_prompt(cost_model)
    show_buckets(cost_model, num_requests=options.requests, seed=options.seed)
    show_batchers(options.seed)
    show_fairness(options.seed)
    show_own_cost()
    show_waiting()
    show_live()
    return 0


def show_steps(cost_model: CostModel) -> None:
    """A handful of requests in a cache that is too small for them, step by step."""
    arrivals = [(0.0, 12, 14), (0.0, 30, 12), (0.0, 5, 8), (0.03, 6, 9), (0.06, 20, 3)]
    workload = Workload([SimulatedRequest(*arrival) for arrival in arrivals])
    config = SchedulerConfig(max_batch_size=4, max_batch_tokens=24, block_size=8, num_blocks=8, max_seq_len=64)
    timeline = Timeline()
    report = simulate(ContinuousBatcher(config), workload, cost_model, on_step=timeline.see)
    print("1. Requests join and leave at every step (continuous batching)\n")
    print(
        f"   At most {config.max_batch_size} sequences and {config.max_batch_tokens} tokens a step, "
        f"{config.num_blocks} KV blocks of {config.block_size} tokens."
    )
    print("   A number is a chunk of a prompt, d one decoded token, ! a preemption, . a step without it.\n")
    for line in timeline.lines():
        print("   " + line)
    print(
        "\n   The long prompt r1 is cut into chunks, so that r0 goes on meanwhile. When the blocks run out, one of\n"
        f"   the later loses its own and goes on later (preemptions: {report.num_preemptions}, tokens computed again: "
        f"{report.num_recomputed}; the cache still\n   had the rest). No token is sampled twice.\n"
    )


def show_batch_sizes(cost_model: CostModel, *, num_requests: int, rate_per_s: float, seed: int) -> None:
    """The same traffic through three schedulers, for each batch size."""
    workload = Workload.poisson(
        seed=seed, num_requests=num_requests, rate_per_s=rate_per_s, prompt_median=48, output_median=32, max_len=400
    )
    config = SchedulerConfig(num_blocks=2048, max_seq_len=1024, max_queue=num_requests)
    # Whole-request batches get all the tokens they can use, and one bucket: nothing is padded here.
    whole = replace(config, max_batch_tokens=1 << 15, bucket_edges=(config.max_seq_len,))
    print("2. Throughput and waiting time against batch size  [SIMULATED]\n")
    print(
        "   The real schedulers on a virtual clock. Declared cost of a step: "
        f"{cost_model.step_overhead_s * 1e3:g} ms + {cost_model.per_prefill_token_s * 1e3:g} ms per prompt token\n"
        f"   + {cost_model.per_decode_seq_s * 1e3:g} ms per decoded token. These constants are assumptions, not "
        "measurements (--step-ms, --prefill-ms, --decode-ms)."
    )
    print(
        f"   Traffic: {num_requests} requests, {rate_per_s:g} per second (Poisson), log-normal lengths, "
        f"medians 48 in and 32 out, seed {seed}.\n"
    )
    print("   max_batch_size  scheduler      tok/s   req/s   waiting p50       p99    E2E p50       p99   mean batch")
    _print_row(1, "pass-through", simulate(PassThrough(config), workload, cost_model))
    for size in BATCH_SIZES:
        schedulers: dict[str, Scheduler] = {
            "static": DynamicBatcher(replace(whole, max_batch_size=size), generates=True),
            "continuous": ContinuousBatcher(replace(config, max_batch_size=size)),
        }
        for name, scheduler in schedulers.items():
            _print_row(size, name, simulate(scheduler, workload, cost_model))
    print(
        "\n   static: whole requests gathered for up to 20 ms, and nobody joins until the last of the batch is done\n"
        "   (its finished members cost nothing here; a padded executor would go on computing them).\n"
    )


def _print_row(size: int, name: str, report: SimulationReport) -> None:
    print(
        f"   {size:>14}  {name:<12} {report.output_tokens_per_s:>7.0f} {report.requests_per_s:>7.2f} "
        f"{report.waiting.p50:>11.3f} s {report.waiting.p99:>7.2f} s "
        f"{report.e2e.p50:>8.2f} s {report.e2e.p99:>7.2f} s {report.mean_batch:>12.1f}"
    )


def show_buckets(cost_model: CostModel, *, num_requests: int, seed: int) -> None:
    """Predictions (one step each) on an executor that pads, with and without length buckets, under overload."""
    workload = Workload.poisson(
        seed=seed, num_requests=num_requests, rate_per_s=200.0, prompt_median=48, output_median=1, max_len=400
    )
    workload = Workload([replace(request, output_len=1) for request in workload.requests])
    padded = replace(cost_model, pads_prefill=True)
    config = SchedulerConfig(
        max_batch_size=16, max_batch_tokens=8192, num_blocks=0, max_seq_len=512, max_queue=num_requests, max_wait_ms=20
    )
    print("5. Length buckets for whole-request batches on an executor that pads  [SIMULATED, same constants]\n")
    print("   buckets   req/s   E2E p50      p99   mean batch   cut because")
    for label, edges in (("one", (512,)), ("ten", DEFAULT_BUCKET_EDGES)):
        batcher = DynamicBatcher(replace(config, bucket_edges=edges))
        report = simulate(batcher, workload, padded)
        reasons = ", ".join(
            f"{reason.value} {count}" for reason, count in sorted(batcher.num_cuts.items(), key=lambda item: -item[1])
        )
        print(
            f"   {label:<7} {report.requests_per_s:>7.1f} {report.e2e.p50:>7.2f} s {report.e2e.p99:>6.2f} s "
            f"{report.mean_batch:>12.1f}   {reasons}"
        )
    print()


def show_own_cost() -> None:
    """What the scheduler costs on this machine."""
    print("8. What the scheduler itself costs  [MEASURED here and now: schedule + update, median of 400 steps]\n")
    print("   scheduler     running   µs per step   µs per request")
    costs = [measure_step_cost(1, pass_through=True), *(measure_step_cost(size) for size in (*BATCH_SIZES, 64, 256))]
    for cost in costs:
        print(f"   {cost.scheduler:<12} {cost.num_running:>8} {cost.us_per_step:>13.1f} {cost.us_per_request:>16.2f}")
    for cost in [measure_batch_cost(size) for size in (1, 8, 32, 64)]:
        print(f"   {cost.scheduler:<12} {cost.num_running:>8} {cost.us_per_step:>13.1f} {cost.us_per_request:>16.2f}")
    print("\n   dynamic: a prediction's whole life, from arriving to ending, batch after batch.")
    print("   A step of a real model takes milliseconds, so this is the price of everything above.\n")


def show_live() -> None:
    """What batching brings on this machine: no cost model, no virtual clock."""
    print("10. Throughput and waiting time against batch size  [MEASURED here and now]\n")
    print(
        "   24 requests arrive together: 8 tokens in, 12 out. A step reads 8 MiB once (a model: its weights)\n"
        "   and 128 KiB for each token: a checksum over real memory, by one core.\n"
    )
    print("   max_batch_size    tok/s   wait, mean   wait, longest   mean batch")
    work = ByteReader()
    work(1)  # page faults belong to nobody's turn
    for size in BATCH_SIZES:
        live = run_live(size, work)
        print(
            f"   {size:>14} {live.tokens_per_s:>8.0f} {live.mean_wait_s:>10.3f} s {live.longest_wait_s:>13.3f} s "
            f"{live.mean_batch:>12.1f}"
        )
    print("\n   What is read once per step is shared by all in it; what each token costs is not. Hence the bend.")


if __name__ == "__main__":
    run_program(main)
