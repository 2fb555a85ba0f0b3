"""What all schedulers share: taking requests in, forgetting them, watching their deadlines, counting.

A subclass decides who runs (`schedule`) and says where a request stands when it has to go (`_leave`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.cut import CutReason
from aie_scheduler.deadlines import DeadlineHeap
from aie_scheduler.errors import RequestTooLongError
from aie_scheduler.fair import FairShare
from aie_scheduler.plan import ScheduledChunk, SchedulerStats, StepPlan
from aie_scheduler.queue import BoundedQueue, DrainRate
from aie_scheduler.request import Request, SequenceState, SequenceStatus
from aie_tensor import InvalidInputError

__all__ = ["SchedulerBase", "chunk_of"]


class SchedulerBase(ABC):
    """Book-keeping around the decision. Single-threaded: the engine's loop owns it."""

    def __init__(
        self, config: SchedulerConfig, *, allocator: BlockAllocator | None = None, generates: bool = True
    ) -> None:
        """`generates`: requests decode until they are named as finished; else one step is all, and no block is kept."""
        self.config = config
        self._generates = generates
        self.allocator = allocator if allocator is not None else BlockAllocator(config.num_blocks)
        assert self.allocator.num_blocks == config.num_blocks, (self.allocator.num_blocks, config.num_blocks)
        self._states: dict[str, SequenceState] = {}
        self._fair = FairShare()
        self._waiting = self._queue()
        self._deadlines = DeadlineHeap[SequenceState](lambda state: state.status is SequenceStatus.FINISHED)
        self._drain_rate = DrainRate()
        self._draining = False
        self._num_arrivals = 0
        self._num_preemptions = 0
        self._num_query_tokens = 0
        self._num_hit_tokens = 0
        self._num_recomputed = 0
        self._num_steps = 0
        self._num_chunks = 0
        self._num_tokens = 0
        self._num_slots = 0
        self.num_cuts: Counter[CutReason] = Counter()  # of those that gather batches

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._states)

    def state_of(self, request_id: str) -> SequenceState | None:
        """What is known of a live request, for logs and tests. Read only."""
        return self._states.get(request_id)

    def add(self, request: Request) -> None:
        """Take a request in. Raises `QueueFullError`, `RequestTooLongError` or `InvalidInputError`, keeping nothing."""
        self._check(request)
        self._waiting.check_room(self._drain_rate.retry_after_s(len(self._waiting)))
        if not self._states:
            self._drain_rate.restart()
        state = SequenceState.of(request, self._num_arrivals)
        self._num_arrivals += 1
        self._states[state.request_id] = state
        self._deadlines.add(state)
        self._fair.join(state)
        self._waiting.push(state)

    def cancel(self, request_id: str) -> bool:
        """Forget a request, wherever it stands; its blocks are free on return.

        Between `schedule` and `update` this is safe: nobody can be given the blocks before the next `schedule`, the
        plan's chunk keeps its own view of the block table, and `update` passes over chunks of requests that are gone.
        """
        state = self._states.get(request_id)
        if state is None:
            return False
        self._leave(state)
        self._forget(state)
        return True

    def fail(self, request_id: str) -> bool:
        """Forget a request whose computation went wrong, before `update`, and all that it has computed."""
        return self.cancel(request_id)

    def propose(self, request_id: str, num_drafts: int) -> None:  # noqa: B027
        """Guesses are for those who decode step by step: of no interest here."""

    def update(self, plan: StepPlan, finished: Collection[str], accepted: Mapping[str, int] | None = None) -> None:
        """Record a plan as computed, then release those in `finished` (of this plan or not); predictions end by it."""
        if not self._generates:
            finished = {chunk.request_id for chunk in plan.chunks} | {*finished}
        stale: set[str] = set()
        states = self._states
        for chunk in plan.chunks:
            state = states.get(chunk.request_id)
            # The table's identity tells a request from a later one of the same name.
            if state is None or state.block_table is not chunk.block_table:
                stale.add(chunk.request_id)
                continue
            state.num_computed += chunk.num_tokens
            if chunk.samples:
                num_new = 1 if accepted is None else accepted.get(chunk.request_id, 1)
                assert 1 <= num_new <= 1 + chunk.num_drafts, (chunk, num_new)
                state.num_computed -= 1 + chunk.num_drafts - num_new  # the KV of rejected guesses is worthless
                state.num_tokens += num_new
            if state.num_computed >= state.next_fill:
                self._store(state, may_read=chunk.request_id not in finished)
        for request_id in finished:
            if request_id not in stale:
                self.cancel(request_id)

    def drain(self) -> None:
        """No more requests will come. Who waits for company stops waiting; the others take no notice."""
        self._draining = True

    @property
    def num_free(self) -> int:
        """How many more requests may wait."""
        return self._waiting.num_free

    def next_deadline(self, now: float) -> float | None:
        """`now` while there is work: every call of `schedule` then has something to do."""
        return now if self._states else None

    def stats(self) -> SchedulerStats:
        """Numbers for metrics and logs."""
        return SchedulerStats(
            num_waiting=len(self._waiting),
            num_running=len(self._states) - len(self._waiting),
            num_blocks=self.allocator.num_blocks,
            num_free_blocks=self.allocator.num_free,
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            num_tokens=self._num_tokens,
            num_slots=self._num_slots,
            cuts=dict(self.num_cuts),
            mean_batch=self._num_chunks / self._num_steps if self._num_steps else 0.0,
            num_cached_blocks=self.allocator.num_cached,
            prefix_query_tokens=self._num_query_tokens,
            prefix_hit_tokens=self._num_hit_tokens,
            num_recomputed_tokens=self._num_recomputed,
        )

    @abstractmethod
    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""

    @abstractmethod
    def _leave(self, state: SequenceState) -> None:
        """Take a request out of the queue or of the running batch (its blocks are freed by the caller)."""

    def _store(self, state: SequenceState, *, may_read: bool) -> None:
        """A step has filled a block or more: only where blocks are shared does this matter."""
        raise NotImplementedError

    def _check(self, request: Request) -> None:
        """Raises unless this request could run, given time. Its own deadline is not looked at: `schedule` does that."""
        if request.request_id in self._states:
            raise InvalidInputError(f"request id {request.request_id!r} is in use", param="request_id")
        if request.prompt_len < 1:
            raise InvalidInputError("the prompt is empty", param="prompt")
        if request.max_tokens < 1:
            raise InvalidInputError(f"max_tokens must be at least 1, not {request.max_tokens}", param="max_tokens")
        if not self._generates:
            self._check_whole(request)
            return
        self._check_context(request)
        self._check_blocks(request)

    def _check_whole(self, request: Request) -> None:
        limit = min(self.config.max_batch_tokens, self.config.max_seq_len)
        if request.prompt_len > limit:
            raise RequestTooLongError(
                f"the prompt has {request.prompt_len} tokens, but a batch of whole requests holds {limit}",
                param="prompt",
            )

    def _check_context(self, request: Request) -> None:
        limit, prompt, wanted = self.config.max_seq_len, request.prompt_len, request.max_tokens
        if prompt >= limit:
            raise RequestTooLongError(
                f"the prompt has {prompt} tokens, but the context holds {limit}, prompt and output together",
                param="prompt",
            )
        if prompt + wanted > limit:
            raise RequestTooLongError(
                f"{prompt} prompt tokens and max_tokens {wanted} make {prompt + wanted}, "
                f"but the context holds {limit}; at most {limit - prompt} tokens can be generated",
                param="max_tokens",
            )

    def _check_blocks(self, request: Request) -> None:
        config = self.config
        needed = config.blocks_for(request.prompt_len + request.max_tokens - 1)
        if needed > config.num_blocks:
            raise RequestTooLongError(
                f"{request.prompt_len} prompt tokens and max_tokens {request.max_tokens} need {needed} KV blocks of "
                f"{config.block_size} tokens, but there are {config.num_blocks} in all",
                param="prompt" if config.blocks_for(request.prompt_len) > config.num_blocks else "max_tokens",
            )

    def _queue(self) -> BoundedQueue:
        """A waiting room that looks at this scheduler's fair share."""
        return BoundedQueue(self.config.max_queue, fair=self._fair, max_bypass=self.config.max_bypass)

    def _begin(self, state: SequenceState, num_blocks: int, shared: Sequence[int] = ()) -> None:
        """From waiting to running: it gets its blocks, after those that hold its beginning already, and its client is
        charged for the rest of the prompt, once.
        """
        state.num_computed = len(shared) * self.config.block_size
        self._waiting.take(state)
        self._fair.serve(state, 0 if state.num_preemptions else state.num_remaining)
        self._fair.leave(state)
        if shared:
            self.allocator.share(shared, state.request_id)
            state.block_table += shared
        state.block_table += self.allocator.allocate(num_blocks - len(shared), state.request_id)
        state.status = SequenceStatus.RUNNING

    def _stop_waiting(self, state: SequenceState) -> None:
        """Out of the queue for good: cancelled or expired, and charged for nothing."""
        self._waiting.remove(state)
        self._fair.leave(state)

    def _forget(self, state: SequenceState) -> None:
        """The end of a request: blocks free, id unknown, its client charged for what was sampled."""
        if self._generates and state.num_sampled:
            self._fair.charge(state, state.num_sampled)
        self._release_blocks(state)
        state.status = SequenceStatus.FINISHED
        del self._states[state.request_id]
        self._deadlines.forget(state)
        self._drain_rate.count(1)

    def _release_blocks(self, state: SequenceState) -> None:
        """Free the blocks and start a new table: a chunk in flight keeps the old list, which never changes again."""
        blocks, state.block_table = state.block_table, []
        self.allocator.free(blocks, state.request_id)

    def _expire(self, now: float) -> list[str]:
        """Give up everybody past their deadline; returns their ids."""
        self._drain_rate.tick(now)
        due = self._deadlines.due(now)
        for state in due:
            self._leave(state)
            self._forget(state)
        return [state.request_id for state in due]

    def _count(self, plan: StepPlan) -> StepPlan | None:
        """Account for a plan on its way out; None when it says nothing at all."""
        if plan.chunks:
            self._num_steps += 1
            self._num_chunks += len(plan.chunks)
            self._num_tokens += plan.num_tokens
            self._num_slots += plan.num_slots
        return plan if plan.chunks or plan.expired or plan.preempted else None


def chunk_of(state: SequenceState, num_tokens: int) -> ScheduledChunk:
    """The next `num_tokens` known tokens of a sequence."""
    start = state.num_computed
    samples = start + num_tokens == state.num_tokens
    return ScheduledChunk(state.request_id, start, num_tokens, state.block_table, samples)
