"""Batches between two readings of counters, of engines and of predictors alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aie_engine import EngineStats, PredictorStats

__all__ = ["Growth", "Reading", "largest_new", "reading_of_engine", "reading_of_predictor"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters since the start, and what is so now."""

    batches: int
    rows: int  # requests over all batches
    sizes: Mapping[int, int]  # batches by their size
    busy_s: float  # spent in batches, by all workers together
    work: Mapping[str, int]  # what was computed, by what it is
    running: int
    waiting: int
    cuts: Mapping[str, int] = field(default_factory=dict)  # batches by why they were cut
    num_workers: int = 1
    kv_usage: float | None = None
    memory_bytes: int | None = None  # resident, of the process that computes


@dataclass(frozen=True, slots=True)
class Growth:
    """From one reading to a later one, over `seconds` in which something was computed."""

    before: Reading
    now: Reading
    seconds: float

    @property
    def batches(self) -> int:
        return self.now.batches - self.before.batches

    @property
    def mean_size(self) -> float:
        return (self.now.rows - self.before.rows) / max(self.batches, 1)

    @property
    def max_size(self) -> int:
        return largest_new(self.before.sizes, self.now.sizes)

    @property
    def busy_share(self) -> float:
        """Of the time, 0 to 1: how much of it somebody computed."""
        whole_s = self.seconds * self.now.num_workers
        return min(1.0, (self.now.busy_s - self.before.busy_s) / whole_s) if whole_s else 0.0

    @property
    def per_s(self) -> Mapping[str, float]:
        """Each kind of work in a second."""
        if not self.seconds:
            return {}
        return {kind: (count - self.before.work.get(kind, 0)) / self.seconds for kind, count in self.now.work.items()}

    @property
    def cuts(self) -> Mapping[str, int]:
        """Batches by why they were cut, the most frequent reason first."""
        grown = {reason: count - self.before.cuts.get(reason, 0) for reason, count in self.now.cuts.items()}
        return dict(sorted(((reason, n) for reason, n in grown.items() if n), key=lambda one: (-one[1], one[0])))


def largest_new(before: Mapping[int, int], now: Mapping[int, int]) -> int:
    """The largest size of which there are more than before; 0 where nothing has grown."""
    return max((size for size, count in now.items() if count > before.get(size, 0)), default=0)


def reading_of_engine(stats: EngineStats) -> Reading:
    """Of one engine's figures."""
    return Reading(
        stats.steps, stats.batch_size_sum, stats.batch_sizes, stats.step_time_s,
        {"generated tokens": stats.tokens_decode, "prompt tokens": stats.tokens_prefill},
        stats.num_running, stats.num_waiting, kv_usage=stats.kv_usage, memory_bytes=stats.rss_bytes,
    )  # fmt: skip


def reading_of_predictor(stats: PredictorStats, memory_bytes: int | None) -> Reading:
    """Of one predictor's figures. memory_bytes: of its workers together."""
    return Reading(
        stats.batches, stats.rows, stats.batch_sizes, stats.pre_s + stats.compute_s, {"inputs": stats.rows},
        stats.num_running, stats.num_waiting, stats.reasons, max(1, len(stats.workers)), memory_bytes=memory_bytes,
    )  # fmt: skip
