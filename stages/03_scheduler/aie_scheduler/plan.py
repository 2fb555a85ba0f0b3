"""What comes out: the plan of one step, and the numbers that describe a scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aie_scheduler.cut import BatchCut, CutReason

__all__ = ["ScheduledChunk", "SchedulerStats", "StepPlan"]


@dataclass(slots=True)
class ScheduledChunk:
    """Tokens [start, start + num_tokens) of one sequence, to be computed in this step."""

    request_id: str
    start: int  # position of the first token
    num_tokens: int
    block_table: list[int]  # a live reference, not a copy: read it, never change it
    samples: bool  # the chunk ends at the last known token, so its last row predicts the next one


@dataclass(slots=True)
class StepPlan:
    """One step. A plan may have no chunks and still carry news of requests that expired."""

    chunks: list[ScheduledChunk] = field(default_factory=list)  # decodes first, then prefill
    expired: list[str] = field(default_factory=list)  # given up past their deadline; their blocks are free already
    preempted: list[str] = field(default_factory=list)  # lost their blocks, wait again, will be recomputed
    cut: BatchCut | None = None  # why this batch, and what it holds, where the step begins one that was gathered

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model in this step."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_slots(self) -> int:
        """Tokens that are computed for them, padding included where the batch is known to have some."""
        return self.num_tokens if self.cut is None else self.cut.num_slots


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot. Counters run since the scheduler was made."""

    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int
    num_preemptions: int
    num_steps: int  # plans with at least one chunk
    num_tokens: int  # tokens of all those plans
    num_slots: int  # tokens that they computed, padding included
    cuts: Mapping[CutReason, int]  # batches that were gathered, by why they were cut
    mean_batch: float  # sequences per step

    @property
    def padding_share(self) -> float:
        """What part of all computed tokens was padding, 0 to 1."""
        return 1.0 - self.num_tokens / self.num_slots if self.num_slots else 0.0
