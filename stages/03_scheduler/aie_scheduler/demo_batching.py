"""The part of the demonstration that is about predictions: batchers side by side, fair shares, ways of waiting."""

import time
from dataclasses import replace
from threading import Thread

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.factory import make_scheduler
from aie_scheduler.front import FrontQueue
from aie_scheduler.plan import StepPlan
from aie_scheduler.report import Percentiles
from aie_scheduler.simulator import BatchCost, simulate
from aie_scheduler.traffic import equal_lengths, parse_lengths, synthetic
from aie_scheduler.waiting import Block, Hybrid, Spin, WaitStrategy
from aie_scheduler.workload import Workload

__all__ = ["show_batchers", "show_fairness", "show_waiting"]

COST = BatchCost(per_batch_s=4e-3, per_token_s=2e-5)
CONFIG = SchedulerConfig(
    policy="dynamic",
    max_batch_size=32,
    max_batch_tokens=1 << 14,
    max_queue=4096,
    num_blocks=0,
    max_seq_len=512,
    buckets="off",
    max_wait_ms=10.0,
)
BATCHERS = {
    "pass-through": replace(CONFIG, policy="passthrough"),
    "static": replace(CONFIG, policy="static"),
    "dynamic": CONFIG,
    "… ten buckets": replace(CONFIG, buckets="fixed"),
    "… quantiles": replace(CONFIG, buckets="quantiles"),
    "… packed": replace(CONFIG, padding="packed"),
    "… and adaptive": replace(CONFIG, padding="packed", adaptive_wait=True),
}


def show_batchers(seed: int) -> None:
    """The same predictions through every batcher: lengths as they are, and all equal."""
    print("6. Predictions: batchers side by side, and how equal lengths flatter  [SIMULATED]\n")
    print(
        f"   Declared cost of a batch: {COST.per_batch_s * 1e3:g} ms + {COST.per_token_s * 1e3:g} ms per token, "
        "padding included; an assumption.\n"
        f"   max_batch_size {CONFIG.max_batch_size}, max_wait_ms "
        f"{CONFIG.max_wait_ms:g}; Poisson for 5 s, log-normal lengths (median 49), seed {seed}.\n"
    )
    print("   offered   batcher           req/s    p50 ms    p99 ms  padding   | all equal: req/s    p99 ms")
    for rate_per_s in (40.0, 600.0):
        workload = _traffic(rate_per_s, seed)
        for name, config in BATCHERS.items():
            given, equal = (
                simulate(make_scheduler(config, generates=False), traffic, COST)
                for traffic in (workload, equal_lengths(workload))
            )
            print(
                f"   {rate_per_s:>5g}/s   {name:<15} {given.requests_per_s:>7.1f} {given.e2e.p50 * 1e3:>9.1f} "
                f"{given.e2e.p99 * 1e3:>9.1f} {100 * given.padding_share:>6.1f} %   | {equal.requests_per_s:>16.1f} "
                f"{equal.e2e.p99 * 1e3:>9.1f}"
            )
        print()
    print(
        "   static waits for its number, however long that takes; adaptive does not wait where nobody is expected.\n"
        "   With equal lengths one bucket looks as good as packing: measure with the lengths of your own traffic.\n"
    )


def _traffic(rate_per_s: float, seed: int) -> Workload:
    length, output = parse_lengths("lognormal(3.9,0.8)", max_len=512), parse_lengths("fixed 1", max_len=1)
    return synthetic("poisson", rate_per_s=rate_per_s, seconds=5.0, length=length, output=output, seed=seed)


def show_fairness(seed: int) -> None:
    """One client sends twenty times as much as another, and more than the server can do."""
    workload = _traffic(800.0, seed)
    clients = ["lone" if index % 20 == 0 else "crowd" for index in range(len(workload.requests))]
    named = Workload(
        tuple(replace(request, client=who) for request, who in zip(workload.requests, clients, strict=True))
    )
    print("7. One client sends 760 requests a second, another 40: more than the server can do  [SIMULATED]\n")
    print("   told apart   req/s   waiting of the crowd: p50      p99   of the lone client: p50      p99")
    for label, traffic in (("no", workload), ("yes", named)):
        waits: dict[str, list[float]] = {"crowd": [], "lone": []}

        def see(now: float, plan: StepPlan, traffic: Workload = traffic, waits: dict[str, list[float]] = waits) -> None:
            for chunk in plan.chunks:
                index = int(chunk.request_id[1:])
                waits[clients[index]].append(now - traffic.requests[index].arrival_s)

        report = simulate(make_scheduler(BATCHERS["… packed"], generates=False), traffic, COST, on_step=see)
        crowd, lone = (Percentiles.of(waits[who]) for who in ("crowd", "lone"))
        crowd_ms, lone_ms = (f"{wait.p50 * 1e3:.0f} ms {wait.p99 * 1e3:>5.0f} ms" for wait in (crowd, lone))
        print(f"   {label:<10} {report.requests_per_s:>7.1f} {crowd_ms:>35} {lone_ms:>31}")
    print("\n   Who sends too much waits for itself. It costs nobody any throughput.\n")


def show_waiting() -> None:
    """From a producer's `put` to the consumer's having it; a short look, `benchmarks/waiting.py` is the measurement."""
    print("9. Ways of waiting for a request  [MEASURED here and now: 100 of them, 2 ms apart]\n")
    print("   strategy   wake-up p50       p99   CPU, producer included")
    strategies: dict[str, WaitStrategy] = {"block": Block(), "spin": Spin(), "hybrid": Hybrid()}
    for name, strategy in strategies.items():
        queue: FrontQueue[float] = FrontQueue(256, waiting=strategy)
        late_s: list[float] = []

        def consume(queue: FrontQueue[float] = queue, late_s: list[float] = late_s) -> None:
            while items := queue.take():
                late_s.extend(time.perf_counter() - put_s for put_s in items)

        consumer = Thread(target=consume)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        consumer.start()
        for _ in range(100):
            time.sleep(0.002)
            queue.put(time.perf_counter())
        queue.close()
        consumer.join()
        share = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
        late = Percentiles.of(late_s)
        print(f"   {name:<9} {late.p50 * 1e6:>9.0f} µs {late.p99 * 1e6:>6.0f} µs {100 * share:>11.0f} % of a core")
    print("\n   At this load the hybrid blocks. It spins when several requests are found at every look.\n")
