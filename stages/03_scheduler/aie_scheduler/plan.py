"""What comes out: the plan of one step, and the numbers that describe a scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aie_scheduler.cut import BatchCut, CutReason

__all__ = ["HeldBack", "HeldReason", "Preemption", "ScheduledChunk", "SchedulerStats", "StepPlan"]

HeldReason = Literal["batch_full", "blocks", "budget", "prefix"]


@dataclass(slots=True)
class ScheduledChunk:
    """Tokens [start, start + num_tokens) of one sequence, to be computed in this step."""

    request_id: str
    start: int  # position of the first token
    num_tokens: int
    block_table: list[int]  # a live reference, not a copy: read it, never change it
    samples: bool  # the chunk reaches the last known token, whose row predicts the next one
    num_drafts: int = 0  # of its tokens the last so many are guesses: rows are wanted of the last 1 + num_drafts


@dataclass(frozen=True, slots=True)
class Preemption:
    """A request that lost its blocks, waits again and will be recomputed."""

    request_id: str
    by: str  # the request that needed a block
    lost_tokens: int  # of its KV; what the prefix cache keeps of them need not be computed again


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why the head of the queue was not admitted in this step.

    batch_full: the batch has no place. blocks: too few are free. budget: the step's tokens went to others. prefix: a
    running request is computing the very tokens that it begins with, and it waits to share them.
    """

    request_id: str
    reason: HeldReason
    blocks_needed: int
    blocks_free: int
    holders: tuple[tuple[str, int], ...] = ()  # request → blocks: who holds most, or whom it waits for


@dataclass(slots=True)
class StepPlan:
    """One step. A plan may have no chunks and still carry news of requests that expired."""

    chunks: list[ScheduledChunk] = field(default_factory=list)  # decodes first, then prefill
    expired: list[str] = field(default_factory=list)  # given up past their deadline; their blocks are free already
    preempted: list[Preemption] = field(default_factory=list)
    admitted: dict[str, int] = field(default_factory=dict)  # who joined, also again → tokens that the cache spared it
    held: HeldBack | None = None  # of those waiting, the first
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
    num_cached_blocks: int = 0  # of the free blocks, those whose content a later request may still find
    prefix_query_tokens: int = 0  # of admitted requests, tokens that were looked up in the prefix cache
    prefix_hit_tokens: int = 0  # of those, tokens that it had
    num_recomputed_tokens: int = 0  # computed again after a preemption

    @property
    def padding_share(self) -> float:
        """What part of all computed tokens was padding, 0 to 1."""
        return 1.0 - self.num_tokens / self.num_slots if self.num_slots else 0.0
