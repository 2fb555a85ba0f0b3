"""What comes out: the plan of one step, and the numbers that describe a scheduler."""

from dataclasses import dataclass, field

from aie_scheduler.cut import BatchCut

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
    mean_batch: float  # sequences per step
