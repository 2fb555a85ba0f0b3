"""Dynamic batching: whole requests, gathered until there are enough or one has waited long enough.

Two thresholds: `max_batch_size` bounds the batch, `max_wait_ms` bounds what its first member pays for company. Requests
wait in buckets by length. A batch is cut from one bucket when, in this order,

    FULL       it holds max_batch_size requests or max_batch_tokens tokens: waiting longer brings nothing
    PREFERRED  it holds one of the `preferred_sizes`; the batch is then the largest of them that can be made
    DRAINED    `drain()` was called: nobody else is coming
    WAITED     its oldest member has waited max_wait_ms
    DEADLINE   a member would miss its deadline otherwise
    QUIET      with `adaptive_wait`: nobody is to be expected in time, so that waiting brings nothing (`gaps.py`)

and of several ripe buckets the one whose head ranks first is cut: by priority, then by the fair share of its model and
client, then by age. A ripe bucket that `max_bypass` requests have passed goes first whatever its rank, so no bucket
starves. `plan.cut`, `last_cut` and `stats().cuts` say why each batch was what it was.

Nothing polls. `next_deadline(now)` is the exact moment of the next cut, so the loop waits on its inbox with that
timeout and neither burns CPU nor oversleeps.

For predictions (encoders, classifiers) a request is done after one step and no KV block is taken. With
`generates=True` this becomes static batching of generations, the ancestor of continuous batching: the batch keeps its
blocks for prompt and output, decodes until its *last* member is done, and only then is the next batch cut.
"""

from aie_scheduler.base import SchedulerBase, chunk_of
from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.buckets import BucketRow, LengthBucket
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.cut import BatchCut, CutReason, num_slots
from aie_scheduler.plan import StepPlan
from aie_scheduler.request import Request, SequenceState, SequenceStatus

__all__ = ["BatchCut", "CutReason", "DynamicBatcher"]

_Rank = tuple[bool, int, tuple[float, float], int]


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
        super().__init__(config, allocator=allocator, generates=generates)
        self._deadline_slack_s = deadline_slack_s
        self._max_wait_s = config.max_wait_ms / 1e3
        self._preferred = sorted(config.preferred_sizes)
        self._buckets = BucketRow(config, self._fair)
        self._batch: list[SequenceState] = []
        self.last_cut: BatchCut | None = None

    def add(self, request: Request) -> None:
        """Take a request in. Raises like every scheduler, and for a prompt that exceeds a whole batch's tokens."""
        super().add(request)
        self._buckets.push(self._states[request.request_id])

    def edges(self, model: str = "") -> tuple[int, ...]:
        """The present bucket edges of a model, which follow the traffic if they are quantiles."""
        return self._buckets.edges(model)

    def schedule(self, now: float) -> StepPlan | None:
        """The batch that is ripe, or the one under way; None while nothing is ripe."""
        plan = StepPlan(expired=self._expire(now))
        if not self._batch:
            plan.cut = self._cut(now)
        plan.chunks = [chunk_of(state, state.num_remaining) for state in self._batch]
        return self._count(plan)

    def next_deadline(self, now: float) -> float | None:
        """When the next batch is ripe or a request expires, whichever is first."""
        if self._batch:
            return now
        moments = [self._ripeness(bucket)[0] for bucket in self._buckets.occupied()]
        if (expiry := self._deadlines.nearest()) is not None:
            moments.append(expiry)
        return max(now, min(moments)) if moments else None

    def _cut(self, now: float) -> BatchCut | None:
        """Make the next batch out of the ripe bucket whose turn it is, if any is ripe."""
        ripe = [
            (bucket, reason)
            for bucket in self._buckets.occupied()
            for moment_s, reason in (self._ripeness(bucket),)
            if moment_s <= now
        ]
        if not ripe:
            return None
        bucket, reason = min(ripe, key=lambda entry: self._rank(entry[0]))
        waited_s = now - bucket.oldest_s()
        self._fill(bucket)
        for other, _ in ripe:
            other.num_passed += len(self._batch)
        bucket.num_passed = 0
        bucket.gaps.cut(now)
        self.num_cuts[reason] += 1
        lengths = [state.prompt_len for state in self._batch]
        slots = self._slots(len(lengths), sum(lengths), max(lengths), bucket)
        self.last_cut = BatchCut(reason, bucket.edge, len(lengths), sum(lengths), max(lengths), waited_s, slots)
        return self.last_cut

    def _fill(self, bucket: LengthBucket) -> None:
        """Take members in order until the batch is as large as it should be, or the next does not fit."""
        size = self._size(len(bucket.members))
        num_tokens = longest = 0
        while len(self._batch) < size and (head := bucket.members.head()) is not None:
            num_tokens, longest = num_tokens + head.prompt_len, max(longest, head.prompt_len)
            slots = self._slots(len(self._batch) + 1, num_tokens, longest, bucket)
            num_blocks = self._blocks_to_start(head)
            if slots > self.config.max_batch_tokens or num_blocks > self.allocator.num_free:
                break
            bucket.take(head)
            self._begin(head, num_blocks)
            self._batch.append(head)
        assert self._batch, f"the head of a ripe bucket does not fit: {bucket.members.head()}"

    def _size(self, num_waiting: int) -> int:
        """Most requests of the next batch: the largest preferred size that can be made, else what there is."""
        preferred = [size for size in self._preferred if size <= num_waiting]
        return preferred[-1] if preferred else min(num_waiting, self.config.max_batch_size)

    def _slots(self, num_requests: int, num_tokens: int, longest: int, bucket: LengthBucket) -> int:
        edge = min(bucket.edge, self.config.max_batch_tokens)
        return num_slots(
            self.config.padding, num_requests=num_requests, num_tokens=num_tokens, longest=longest, edge=edge
        )

    def _ripeness(self, bucket: LengthBucket) -> tuple[float, CutReason]:
        """The moment from which an occupied bucket may be cut (minus infinity: need not wait at all), and why then."""
        now = float("-inf")
        if self._is_full(bucket):
            return now, CutReason.FULL
        if self._preferred and len(bucket.members) >= self._preferred[0]:
            return now, CutReason.PREFERRED
        if self._draining:
            return now, CutReason.DRAINED
        return self._patience(bucket)

    def _patience(self, bucket: LengthBucket) -> tuple[float, CutReason]:
        """How long a bucket waits for company that may still come."""
        waited_s = bucket.oldest_s() + self._max_wait_s
        deadline_s = bucket.nearest_deadline_s() - self._deadline_slack_s
        moment_s, reason = (waited_s, CutReason.WAITED) if waited_s <= deadline_s else (deadline_s, CutReason.DEADLINE)
        if self.config.adaptive_wait and (quiet_s := bucket.gaps.give_up_s(moment_s)) < moment_s:
            return quiet_s, CutReason.QUIET
        return moment_s, reason

    def _is_full(self, bucket: LengthBucket) -> bool:
        num_waiting = len(bucket.members)
        if num_waiting >= self.config.max_batch_size:
            return True
        num_tokens = bucket.num_tokens
        if self.config.padding == "bucket":
            num_tokens = num_waiting * min(bucket.edge, self.config.max_batch_tokens)
        return num_tokens >= self.config.max_batch_tokens

    def _rank(self, bucket: LengthBucket) -> _Rank:
        head = bucket.members.head()
        assert head is not None, "only occupied buckets are compared"
        is_passed = bucket.num_passed >= self.config.max_bypass
        return not is_passed, head.priority, self._fair.key((head.model, head.client)), head.order

    def _blocks_to_start(self, state: SequenceState) -> int:
        """A generation reserves all it may ever need, since nobody is preempted here; a prediction keeps nothing."""
        return self.config.blocks_for(state.max_cached) if self._generates else 0

    def _leave(self, state: SequenceState) -> None:
        if state.status is SequenceStatus.RUNNING:
            self._batch.remove(state)
        else:
            self._buckets.of(state).remove(state)
            self._stop_waiting(state)

    def _check_context(self, request: Request) -> None:
        self._check_whole(request)
        super()._check_context(request)
