"""Dynamic batching: whole requests, gathered until there are enough or one has waited long enough.

Two thresholds: `max_batch_size` bounds the batch, `max_wait_ms` bounds what its first member pays for company. Requests
wait in buckets by length. A batch is cut from one bucket when, in this order,

    FULL       it holds max_batch_size requests or max_batch_tokens tokens: waiting longer brings nothing
    DRAINED    `drain()` was called: nobody else is coming
    WAITED     its oldest member has waited max_wait_ms
    DEADLINE   a member would miss its deadline otherwise

and of several ripe buckets the one whose head ranks first is cut. `last_cut` and `num_cuts` say why each batch was
what it was.

Nothing polls. `next_deadline(now)` is the exact moment of the next cut, so the loop waits on its inbox with that
timeout and neither burns CPU nor oversleeps.

For predictions (encoders, classifiers) a request is done after one step and no KV block is taken. With
`generates=True` this becomes static batching, the ancestor of continuous batching: the batch keeps its blocks for
prompt and output, decodes until its *last* member is done, and only then is the next batch cut.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from aie_scheduler.base import SchedulerBase, chunk_of
from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.buckets import BucketRow, LengthBucket
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.errors import RequestTooLongError
from aie_scheduler.plan import StepPlan
from aie_scheduler.request import Request, SequenceState, SequenceStatus

__all__ = ["BatchCut", "CutReason", "DynamicBatcher"]


class CutReason(Enum):
    """Why a batch was sent off when it was."""

    FULL = "full"
    DRAINED = "drained"
    WAITED = "waited"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class BatchCut:
    """The record of one decision."""

    reason: CutReason
    bucket_edge: int  # tokens: longest prompt its bucket takes
    num_requests: int
    num_tokens: int  # of the prompts
    longest: int  # tokens: length of the longest prompt
    waited_s: float  # by its oldest member

    @property
    def padding_share(self) -> float:
        """What part of the rectangle `num_requests` × `longest` would be padding, 0 to 1."""
        return 1.0 - self.num_tokens / (self.num_requests * self.longest)


class DynamicBatcher(SchedulerBase):
    """Two thresholds and length buckets. One batch at a time, made of whole requests."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        allocator: BlockAllocator | None = None,
        generates: bool = False,
        deadline_slack_s: float = 0.05,  # a batch is cut that long before a member's deadline: about one step
    ) -> None:
        super().__init__(config, allocator=allocator)
        self._generates = generates
        self._deadline_slack_s = deadline_slack_s
        self._max_wait_s = config.max_wait_ms / 1e3
        self._buckets = BucketRow(config.bucket_edges, config.max_seq_len, config.max_queue)
        self._batch: list[SequenceState] = []
        self._draining = False
        self.last_cut: BatchCut | None = None
        self.num_cuts: Counter[CutReason] = Counter()

    def add(self, request: Request) -> None:
        """Take a request in. Raises like every scheduler, and for a prompt that exceeds a whole batch's tokens."""
        super().add(request)
        state = self._states[request.request_id]
        self._buckets.of(state).push(state)

    def drain(self) -> None:
        """No more requests will come: cut what is there without waiting."""
        self._draining = True

    def schedule(self, now: float) -> StepPlan | None:
        """The batch that is ripe, or the one under way; None while nothing is ripe."""
        plan = StepPlan(expired=self._expire(now))
        if not self._batch:
            self._cut(now)
        plan.chunks = [chunk_of(state, state.num_remaining) for state in self._batch]
        return self._count(plan)

    def update(self, plan: StepPlan, finished: Collection[str]) -> None:
        """Record a plan as computed. A prediction is done after its one step, whether named in `finished` or not."""
        super().update(plan, finished if self._generates else {chunk.request_id for chunk in plan.chunks} | {*finished})

    def next_deadline(self, now: float) -> float | None:
        """When the next batch is ripe or a request expires, whichever is first."""
        if self._batch:
            return now
        moments = [self._ripe_at(bucket) for bucket in self._buckets.occupied()]
        if (expiry := self._deadlines.nearest()) is not None:
            moments.append(expiry)
        return max(now, min(moments)) if moments else None

    def _cut(self, now: float) -> None:
        """Make the next batch out of the ripe bucket whose head ranks first, if any is ripe."""
        ripe = [bucket for bucket in self._buckets.occupied() if self._ripe_at(bucket) <= now]
        if not ripe:
            return
        bucket = min(ripe, key=_rank_of_head)
        reason, oldest_s = self._reason(bucket), bucket.oldest_s()
        while (head := bucket.members.head()) is not None and self._fits(head):
            bucket.remove(head)
            self._waiting.remove(head)
            self._start(head)
        lengths = [state.prompt_len for state in self._batch]
        self.last_cut = BatchCut(reason, bucket.edge, len(lengths), sum(lengths), max(lengths), now - oldest_s)
        self.num_cuts[reason] += 1

    def _is_full(self, bucket: LengthBucket) -> bool:
        return len(bucket.members) >= self.config.max_batch_size or bucket.num_tokens >= self.config.max_batch_tokens

    def _ripe_at(self, bucket: LengthBucket) -> float:
        """The moment from which an occupied bucket may be cut; minus infinity when it need not wait at all."""
        if self._draining or self._is_full(bucket):
            return float("-inf")
        return min(bucket.oldest_s() + self._max_wait_s, bucket.nearest_deadline_s() - self._deadline_slack_s)

    def _reason(self, bucket: LengthBucket) -> CutReason:
        """Why a ripe bucket is ripe."""
        if self._is_full(bucket):
            return CutReason.FULL
        if self._draining:
            return CutReason.DRAINED
        waited_first = bucket.oldest_s() + self._max_wait_s <= bucket.nearest_deadline_s() - self._deadline_slack_s
        return CutReason.WAITED if waited_first else CutReason.DEADLINE

    def _fits(self, state: SequenceState) -> bool:
        """Whether the batch being cut has room for one more whole request."""
        num_tokens = sum(member.prompt_len for member in self._batch) + state.prompt_len
        return (
            len(self._batch) < self.config.max_batch_size
            and num_tokens <= self.config.max_batch_tokens
            and self._blocks_to_start(state) <= self.allocator.num_free
        )

    def _blocks_to_start(self, state: SequenceState) -> int:
        """A generation reserves all it may ever need, since nobody is preempted here; a prediction keeps nothing."""
        return self.config.blocks_for(state.max_cached) if self._generates else 0

    def _start(self, state: SequenceState) -> None:
        state.block_table += self.allocator.allocate(self._blocks_to_start(state), state.request_id)
        state.status = SequenceStatus.RUNNING
        self._batch.append(state)

    def _leave(self, state: SequenceState) -> None:
        if state.status is SequenceStatus.RUNNING:
            self._batch.remove(state)
        else:
            self._waiting.remove(state)
            self._buckets.of(state).remove(state)

    def _check_context(self, request: Request) -> None:
        limit = min(self.config.max_batch_tokens, self.config.max_seq_len)
        if request.prompt_len > limit:
            raise RequestTooLongError(
                f"the prompt has {request.prompt_len} tokens, but a batch of whole requests holds {limit}",
                param="prompt",
            )
        if self._generates:
            super()._check_context(request)

    def _check_blocks(self, request: Request) -> None:
        if self._generates:
            super()._check_blocks(request)


def _rank_of_head(bucket: LengthBucket) -> tuple[int, int]:
    head = bucket.members.head()
    assert head is not None, "only occupied buckets are compared"
    return head.rank
