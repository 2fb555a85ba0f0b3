"""What the front keeps books of: open requests, batches, lanes, and how many of what there have been."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from aie_engine.predictors.protocol import PredictorStats, WorkerStats
from aie_engine.predictors.requests import BatchFacts, PredictFuture, PredictRequest
from aie_engine.predictors.runner import BatchResult, Item
from aie_scheduler import Request

__all__ = ["Batch", "Counts", "Lane", "LaneBook", "Member", "to_batcher"]

_SMOOTHED_OVER = 8  # batches


@dataclass(eq=False, slots=True)
class Member:
    """One open request."""

    request_id: str
    item: Item
    future: PredictFuture
    arrival_s: float
    deadline_s: float | None
    is_waiting: bool = True  # until it is in a batch


@dataclass(eq=False, slots=True)
class Batch:
    """Requests that are computed together."""

    members: list[Member]
    reason: str
    padding_share: float
    cut_s: float
    num_deaths: int = 0  # of workers that had it

    def __post_init__(self) -> None:
        for member in self.members:
            member.is_waiting = False

    def facts(self, member: Member, result: BatchResult, worker: int) -> BatchFacts:
        """What one of them is told of it."""
        return BatchFacts(
            len(self.members),
            self.reason,
            self.cut_s - member.arrival_s,
            result.compute_s,
            result.pre_s,
            self.padding_share,
            worker,
        )


class Lane(Protocol):
    """Computes one batch at a time, and tells the front of the end by `finish` or `lose`."""

    @property
    def index(self) -> int: ...

    def start(self, batch: Batch) -> None:
        """Called by the front's thread, without its lock. Does not raise."""
        ...


@dataclass(slots=True)
class LaneBook:
    """What the front knows of a lane."""

    is_ready: bool = True
    batch: Batch | None = None  # under way
    since_s: float | None = None  # when it began with what it has to do: a batch, or to start its worker again
    batches: int = 0
    rows: int = 0
    compute_s: float = 0.0

    def begin(self, batch: Batch, now: float) -> None:
        """It is given a batch."""
        self.batch, self.since_s = batch, now

    def lose(self, now: float) -> Batch | None:
        """Its worker is dead: the batch that it had."""
        batch, self.batch, self.is_ready, self.since_s = self.batch, None, False, now
        return batch

    def revive(self) -> None:
        """Its worker is there again."""
        self.is_ready, self.since_s = True, None

    def stuck_s(self, now: float) -> float:
        """How long it has been at what it has to do; 0 for nothing."""
        return 0.0 if self.since_s is None else now - self.since_s

    def add(self, batch: Batch, result: BatchResult) -> None:
        """Its batch is computed."""
        self.batch = self.since_s = None
        self.batches += 1
        self.rows += len(batch.members)
        self.compute_s += result.compute_s

    def stats(self, index: int) -> WorkerStats:
        """All of it as one value; what only the lane knows is 0."""
        busy = self.batch is not None
        return WorkerStats(index, 0, self.is_ready, busy, self.batches, self.rows, self.compute_s, restarts=0)


@dataclass(slots=True)
class Counts:
    """Since the start."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    refused: int = 0
    dropped: int = 0
    batches: int = 0
    rows: int = 0
    padding: float = 0.0
    pre_s: float = 0.0
    compute_s: float = 0.0
    usual_batch_s: float = 0.0  # from its start to its end, smoothed; 0 before the first
    resent: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)

    def add(self, batch: Batch, result: BatchResult, took_s: float) -> None:
        """One more batch is computed."""
        self.usual_batch_s += (took_s - self.usual_batch_s) / min(self.batches + 1, _SMOOTHED_OVER)
        self.batches += 1
        self.rows += len(batch.members)
        self.reasons[batch.reason] += 1
        self.sizes[len(batch.members)] += 1
        self.padding += batch.padding_share
        self.pre_s += result.pre_s
        self.compute_s += result.compute_s

    def stats(
        self, *, waiting: int, running: int, max_batch_size: int, stuck_s: float, workers: Iterable[WorkerStats]
    ) -> PredictorStats:
        """All of it as one value."""
        return PredictorStats(
            num_waiting=waiting,
            num_running=running,
            num_done=self.done,
            num_failed=self.failed,
            num_cancelled=self.cancelled,
            num_expired=self.expired,
            num_refused=self.refused,
            num_dropped=self.dropped,
            batches=self.batches,
            rows=self.rows,
            reasons=dict(self.reasons),
            padding_share=self.padding / self.batches if self.batches else 0.0,
            pre_s=self.pre_s,
            compute_s=self.compute_s,
            max_batch_size=max_batch_size,
            resent_batches=self.resent,
            workers=tuple(workers),
            stuck_s=stuck_s,
            usual_batch_s=self.usual_batch_s,
            batch_sizes=dict(self.sizes),
        )


def to_batcher(request: PredictRequest, length: int, now: float) -> Request:
    """What the batcher knows of a request: how long it is, whose, and how urgent. Its wait for company begins `now`."""
    return Request(
        request_id=request.request_id,
        prompt_len=length,
        max_tokens=1,
        priority=request.priority,
        arrival_s=now,
        deadline_s=request.deadline_s,
        client=request.client,
    )
