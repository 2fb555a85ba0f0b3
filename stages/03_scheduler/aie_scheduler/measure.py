"""What the scheduler itself costs on this machine: measured, not simulated."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.dynamic import DynamicBatcher
from aie_scheduler.passthrough import PassThrough
from aie_scheduler.request import Request

__all__ = ["StepCost", "measure_batch_cost", "measure_step_cost"]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Time of one `schedule` + `update`, the median over many steps, block allocations included."""

    scheduler: str
    num_running: int
    us_per_step: float

    @property
    def us_per_request(self) -> float:
        """The step's cost shared by the sequences in it."""
        return self.us_per_step / self.num_running


def measure_step_cost(num_running: int, *, num_steps: int = 400, pass_through: bool = False) -> StepCost:
    """Decode `num_running` sequences (one, for pass-through) for `num_steps` steps and time each."""
    max_seq_len = num_steps + 64
    config = SchedulerConfig(
        max_batch_size=num_running,
        max_batch_tokens=max(num_running, 512),
        num_blocks=num_running * (max_seq_len // 16 + 1),
        max_seq_len=max_seq_len,
    )
    scheduler = PassThrough(config) if pass_through else ContinuousBatcher(config)
    for index in range(num_running):
        scheduler.add(Request(request_id=f"r{index}", prompt_len=8, max_tokens=num_steps + 16))
    durations_ns: list[int] = []
    while len(durations_ns) < num_steps:
        start_ns = perf_counter_ns()
        plan = scheduler.schedule(0.0)
        assert plan is not None, scheduler.stats()
        scheduler.update(plan, ())
        elapsed_ns = perf_counter_ns() - start_ns
        if len(plan.chunks) == num_running and plan.num_tokens == num_running:  # prefill is over
            durations_ns.append(elapsed_ns)
    return StepCost("pass-through" if pass_through else "continuous", num_running, median(durations_ns) / 1e3)


def measure_batch_cost(batch_size: int, *, num_batches: int = 100) -> StepCost:
    """Gather `batch_size` predictions of three clients, cut the batch and end it; the whole life of each is timed.

    After every arrival the loop asks how long it may sleep, as it does when requests come one by one.
    """
    config = SchedulerConfig(max_batch_size=batch_size, max_batch_tokens=8192, num_blocks=0, max_seq_len=512)
    batcher = DynamicBatcher(config)
    durations_ns: list[int] = []
    for _ in range(num_batches):
        requests = [
            Request(request_id=f"r{index}", prompt_len=8, max_tokens=1, client=f"client {index % 3}")
            for index in range(batch_size)
        ]
        start_ns = perf_counter_ns()
        for request in requests:
            batcher.add(request)
            batcher.next_deadline(0.0)
        plan = batcher.schedule(0.0)
        assert plan is not None and len(plan.chunks) == batch_size, batcher.stats()
        batcher.update(plan, ())
        durations_ns.append(perf_counter_ns() - start_ns)
    return StepCost("dynamic", batch_size, median(durations_ns) / 1e3)
