"""What a core counts, and its figures as one value."""

from dataclasses import asdict, dataclass, field

from aie_engine.speculation import Speculator
from aie_engine.stats import EngineStats
from aie_scheduler import SchedulerStats
from aie_tensor import MemoryPool

__all__ = ["Counters", "figures"]


@dataclass(slots=True)
class Counters:
    """As in `EngineStats`."""

    steps: int = 0
    batch_size_sum: int = 0
    tokens_prefill: int = 0
    tokens_decode: int = 0
    step_time_s: float = 0.0
    failed_steps: int = 0
    batch_sizes: dict[int, int] = field(default_factory=dict)

    def add_step(self, size: int) -> None:
        """One more step, of `size` requests."""
        self.steps += 1
        self.batch_size_sum += size
        self.batch_sizes[size] = self.batch_sizes.get(size, 0) + 1


def figures(
    counters: Counters,
    queue: SchedulerStats,
    pool: MemoryPool,
    speculator: Speculator | None,
    *,
    since: SchedulerStats,
    execute_time_s: float,
    last_step_age_s: float,
) -> EngineStats:
    """Figures of now, without those of the process (`rss_bytes`, `worker_pid`). since: of when counting began."""
    used = queue.num_blocks - queue.num_free_blocks
    memory = pool.stats()
    return EngineStats(
        num_running=queue.num_running,
        num_waiting=queue.num_waiting,
        kv_usage=used / queue.num_blocks if queue.num_blocks else 0.0,
        num_free_blocks=queue.num_free_blocks,
        num_preemptions=queue.num_preemptions - since.num_preemptions,
        last_step_age_s=last_step_age_s,
        execute_time_s=execute_time_s,
        num_kv_blocks=queue.num_blocks,
        memory_reserved_bytes=memory.reserved_bytes,
        memory_live_bytes=memory.live_bytes,
        memory_requested_bytes=memory.requested_bytes,
        memory_cached_bytes=memory.cached_bytes,
        memory_pending_bytes=memory.pending_bytes,
        memory_mapped_bytes=memory.mapped_bytes,
        prefix_query_tokens=queue.prefix_query_tokens - since.prefix_query_tokens,
        prefix_hit_tokens=queue.prefix_hit_tokens - since.prefix_hit_tokens,
        num_cached_blocks=queue.num_cached_blocks,
        drafted_tokens=speculator.num_drafted if speculator is not None else 0,
        accepted_tokens=speculator.num_accepted if speculator is not None else 0,
        **asdict(counters),
    )
