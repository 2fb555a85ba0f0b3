"""What a simulation found out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from aie_scheduler.cut import CutReason

__all__ = ["Percentiles", "SimulationReport"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of durations in seconds. Nearest rank: each is a value that really occurred. Zero when there are none."""

    p50: float
    p99: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        """Summarise; the order of `values` does not matter."""
        if not values:
            return cls(0.0, 0.0, 0.0)
        ordered = sorted(values)

        def at(share: float) -> float:
            return ordered[ceil(share * len(ordered)) - 1]

        return cls(at(0.50), at(0.99), sum(ordered) / len(ordered))


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """All times are of the virtual clock, under the cost model that was declared: no machine was measured."""

    num_done: int
    num_refused: int  # the queue was full, or the request too long
    num_expired: int  # past their deadline
    makespan_s: float  # from the start to the last step's end
    output_tokens: int
    num_recomputed: int  # tokens computed again after a preemption
    num_preemptions: int
    num_steps: int
    mean_batch: float  # sequences per step
    busy_s: float  # in steps; the rest of the time the executor waited
    num_tokens: int  # computed, padding left out
    num_slots: int  # computed, padding included
    reasons: Mapping[CutReason, int]  # of gathered batches: why each was cut
    sizes: Mapping[int, int]  # requests in a step → steps
    ttft: Percentiles  # arrival to first token
    e2e: Percentiles  # arrival to last token
    waiting: Percentiles  # arrival to the first step that has the request in it
    num_query_tokens: int = 0  # of prompts that were looked up in the prefix cache
    num_hit_tokens: int = 0  # of those, found there

    @property
    def requests_per_s(self) -> float:
        """Finished requests over the whole time."""
        return self.num_done / self.makespan_s if self.makespan_s else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        """Sampled tokens of finished requests over the whole time."""
        return self.output_tokens / self.makespan_s if self.makespan_s else 0.0

    @property
    def hit_share(self) -> float:
        """What part of the prompts was found in the prefix cache, 0 to 1."""
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0

    @property
    def busy_share(self) -> float:
        """What part of the time the executor computed, 0 to 1."""
        return self.busy_s / self.makespan_s if self.makespan_s else 0.0

    @property
    def padding_share(self) -> float:
        """What part of the computed tokens was padding, 0 to 1."""
        return 1.0 - self.num_tokens / self.num_slots if self.num_slots else 0.0
