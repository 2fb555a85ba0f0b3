"""What the scheduler itself costs on this machine: measured, not simulated."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.passthrough import PassThrough
from aie_scheduler.request import Request

__all__ = ["StepCost", "measure_step_cost"]


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
