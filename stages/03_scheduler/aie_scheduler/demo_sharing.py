"""The part of the demonstration that is about prompts: beginnings that are shared, long ones among other streams."""

from dataclasses import replace
from itertools import pairwise

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.plan import StepPlan
from aie_scheduler.report import Percentiles
from aie_scheduler.simulator import CostModel, simulate
from aie_scheduler.workload import SimulatedRequest, Workload

__all__ = ["show_long_prompt", "show_prefix_cache"]

NUM_STREAMS = 16
LONG_PROMPT = 4000  # tokens


def show_prefix_cache(cost_model: CostModel, seed: int) -> None:
    """The same burst and the same stream of requests behind one system prompt, with and without the cache."""
    print("3. A system prompt of 400 tokens that all requests share  [SIMULATED, same constants]\n")
    print("   traffic          cache   TTFT p50       p99    tok/s   prompt tokens computed   from the cache")
    burst = Workload([SimulatedRequest(0.0, 40, 32)] * 32)
    steady = Workload.poisson(
        seed=seed, num_requests=200, rate_per_s=4.0, prompt_median=40, output_median=32, max_len=200
    )
    config = SchedulerConfig(num_blocks=2048, max_seq_len=1024)
    for name, workload in (("32 at once", burst), ("4 per second", steady)):
        for cached in (False, True):
            scheduler = ContinuousBatcher(replace(config, prefix_caching=cached))
            report = simulate(scheduler, workload.with_shared_prefix(400), cost_model)
            num_prompt = sum(request.prompt_len + 400 for request in workload.requests)
            print(
                f"   {name:<15}  {'on' if cached else 'off':<5} {report.ttft.p50 * 1e3:>8.0f} ms "
                f"{report.ttft.p99 * 1e3:>6.0f} ms {report.output_tokens_per_s:>8.0f} "
                f"{num_prompt - report.num_hit_tokens:>24} {report.num_hit_tokens:>16}"
            )
    print("\n   Of those who come together, one computes the beginning, and the others wait for it and share it.\n")


def show_long_prompt(cost_model: CostModel) -> None:
    """Sixteen streams decode when a long prompt arrives."""
    print(f"4. A prompt of {LONG_PROMPT} tokens arrives among {NUM_STREAMS} that decode  [SIMULATED, same constants]\n")
    print("   max_prefill_tokens   between two tokens: p50      p99   first token of the long prompt")
    streams = [SimulatedRequest(0.0, 40, 600)] * NUM_STREAMS
    config = SchedulerConfig(num_blocks=4096, max_seq_len=8192)
    for limit, requests in (
        ("no such prompt", streams),
        (None, [*streams, SimulatedRequest(1.0, LONG_PROMPT, 8)]),
        (256, [*streams, SimulatedRequest(1.0, LONG_PROMPT, 8)]),
    ):
        scheduler = ContinuousBatcher(
            replace(config, max_prefill_tokens=limit) if not isinstance(limit, str) else config
        )
        starts_s: list[float] = []

        def see(now: float, plan: StepPlan, starts_s: list[float] = starts_s, requests: object = requests) -> None:
            has_long = any(chunk.request_id == f"r{NUM_STREAMS}" for chunk in plan.chunks)
            if has_long or (requests is streams and len(plan.chunks) == plan.num_tokens):
                starts_s.append(now)

        report = simulate(scheduler, Workload(requests), cost_model, on_step=see)
        gaps = Percentiles.of([after - before for before, after in pairwise(starts_s)])
        first = "-" if requests is streams else f"{report.ttft.p99:.1f} s"
        print(f"   {limit!s:<18} {gaps.p50 * 1e3:>24.0f} ms {gaps.p99 * 1e3:>5.0f} ms {first:>32}")
    print("\n   While others decode, a long prompt is read in slices, about two tokens for each of them.\n")
