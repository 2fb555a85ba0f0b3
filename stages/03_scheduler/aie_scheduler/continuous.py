"""Continuous batching: requests join and leave the batch at every step.

Yu et al. 2022 ("Orca: A Distributed Serving System for Transformer-Based Generative Models") schedule by iteration
instead of by request; Agrawal et al. 2024 ("Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve")
cut long prompts into chunks, so that a step's work stays bounded and nobody's decode waits for somebody's prompt.
Each step:

1. Decode. Every running sequence with one token to do gets it, in order of rank (priority, then arrival).
2. Guesses. Tokens that somebody proposed for those are checked along with them, where tokens and blocks are left over
   and no prompt is to be computed: who waits for a first token comes before who would have the next ones sooner.
3. Prefill. What is left of `max_batch_tokens`, or less while others decode (`slices.py`), goes to prompts in order of
   rank: those begun, and those waiting, who are admitted when a place in the batch and blocks for *all* their known
   tokens plus one are free, and two more for each that runs, since those will grow. The blocks are taken at
   admission: to admit on the first chunk alone promises the same free blocks to several prompts. What others have
   computed already is taken from the prefix cache (`prefix.py`), and who begins with what a running request is
   computing just now steps aside until that is done, without holding up those behind it.
   A prompt that cannot finish in this step leaves a part (1 - `prefill_share`) to those behind it, so that eight tokens
   need not wait for eight thousand; what nobody wants goes back to the first.

When a decode finds no free block, a running sequence behind it in rank is preempted (`victims.py` says which): it loses
its blocks, keeps its tokens, goes to the front of the queue and is recomputed later. No request is ever killed for lack
of memory.

Why it always goes on: `running` is sorted by rank and victims stand behind the needy, so a planned chunk is never
revoked and the first sequence is never a victim; alone, it fits, or `add` would have refused it. Each preemption lets
somebody sample a token, so there are no more of them than tokens. Nobody is admitted in a step that preempts. The
queue's head fits once nothing runs, and nobody small overtakes a big request until it starves. Who steps aside waits
for a running request of its own priority or better, and only so many times.

Cost: O(1) per running sequence and step, O(running) to admit, preempt or release one, and one look-up per block of a
prompt. While the head of the queue waits for blocks, nothing is looked up until as many are free as it lacked.
"""

from bisect import insort
from heapq import nlargest
from operator import attrgetter

from aie_scheduler.base import SchedulerBase, chunk_of
from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.plan import HeldBack, Preemption, StepPlan
from aie_scheduler.prefix import CachedBlock, PrefixCache
from aie_scheduler.request import Request, SequenceState, SequenceStatus
from aie_scheduler.slices import PrefillBudget
from aie_scheduler.victims import choose_victim
from aie_tensor import InvalidInputError

__all__ = ["ContinuousBatcher"]

MAX_WAITS = 4  # times that a request steps aside for what another computes; then it computes for itself
NUM_GROWTH = 2  # blocks kept free at an admission for each that runs, unless it can never need them
NUM_HOLDERS = 3  # named in `HeldBack`

_rank = attrgetter("rank")
_Candidate = tuple[SequenceState, list[CachedBlock]]  # who is next, and what the cache has of it


class ContinuousBatcher(SchedulerBase):
    """Mixed prefill and decode under one token budget, over paged KV blocks."""

    def __init__(self, config: SchedulerConfig, *, allocator: BlockAllocator | None = None) -> None:
        super().__init__(config, allocator=allocator)
        if config.num_blocks < 1:
            raise InvalidInputError("continuous batching needs a KV cache: num_blocks is 0", param="num_blocks")
        self._running: list[SequenceState] = []  # ascending rank
        self._prefixes = PrefixCache(self.allocator, config.block_size, self._go_on)
        self._proposed: dict[str, int] = {}  # guesses for the next step
        # The head that lacked blocks when it was last looked at, and how many it needs.
        self._blocked: SequenceState | None = None
        self._blocks_needed = 0
        self._num_short = 0  # blocks that it lacked in this step

    def add(self, request: Request) -> None:
        """Take a request in."""
        super().add(request)
        if not self.config.prefix_caching:
            self._states[request.request_id].block_content = None

    def fail(self, request_id: str) -> bool:
        """Forget a request whose computation went wrong; nobody will be given what it computed."""
        state = self._states.get(request_id)
        if state is not None:
            self._prefixes.leave(state, is_sound=False)
        return self.cancel(request_id)

    def propose(self, request_id: str, num_drafts: int) -> None:
        """Guesses at a request's next tokens, for the next `schedule` alone."""
        self._proposed[request_id] = num_drafts

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None when no request is left."""
        plan = StepPlan(expired=self._expire(now))
        prefilling = self._plan_decodes(plan)
        num_decoding = len(plan.chunks)
        num_tokens = self.config.max_batch_tokens - num_decoding
        num_waiting = len(prefilling) + len(self._waiting)
        if self._proposed:
            num_tokens -= self._plan_guesses(plan, 0 if self._has_prompt(prefilling) else num_tokens)
        self._num_short = 0
        if num_waiting:
            budget = PrefillBudget(self.config, num_tokens, num_decoding=num_decoding, num_waiting=num_waiting)
            self._plan_prefill(plan, prefilling, budget)
            plan.held = self._held_back(plan)
        return self._count(plan)

    def _has_prompt(self, prefilling: list[SequenceState]) -> bool:
        """Whether a prompt is likely to be computed in this step. Then nobody guesses: a guess is worth its time where
        nobody waits for it, and whoever has no token yet does."""
        may_begin = len(self._waiting) > 0 and self._blocked is None and len(self._running) < self.config.max_batch_size
        return bool(prefilling) or may_begin

    def _plan_decodes(self, plan: StepPlan) -> list[SequenceState]:
        """One token for every running sequence that has one to do; returns those with more, in order of rank."""
        prefilling: list[SequenceState] = []
        running, chunks, block_size = self._running, plan.chunks, self.config.block_size
        index = 0
        while index < len(running):  # victims leave from behind while this loop runs
            state = running[index]
            index += 1
            if state.num_tokens - state.num_computed > 1:
                prefilling.append(state)
                continue
            if len(state.block_table) * block_size < state.num_tokens and not self._grow(state, index, plan):
                continue
            chunks.append(chunk_of(state, 1))
        return prefilling

    def _grow(self, state: SequenceState, index: int, plan: StepPlan) -> bool:
        """One more block for a running sequence, taken from one behind it (from `index` on) if need be; False if there
        is none, and it had to go itself.
        """
        assert state.num_tokens <= state.max_cached, f"{state} has all its tokens, but was never finished"
        while self.allocator.num_free == 0:
            victim = choose_victim(self._running[index:], self.allocator, self.config.block_size) or state
            self._preempt(victim, state, plan)
            if victim is state:
                return False
        state.block_table += self.allocator.allocate(1, state.request_id)
        return True

    def _preempt(self, state: SequenceState, needy: SequenceState, plan: StepPlan) -> None:
        """Back to the front of the queue without blocks. Its tokens stay known, so none is ever sampled twice."""
        plan.preempted.append(Preemption(state.request_id, needy.request_id, state.num_computed))
        self._running.remove(state)
        self._prefixes.leave(state)
        self._release_blocks(state)
        state.furthest = max(state.furthest, state.num_computed)
        state.num_computed = 0
        state.status = SequenceStatus.PREEMPTED
        state.num_preemptions += 1
        self._num_preemptions += 1
        self._fair.join(state)
        self._waiting.push_front(state)

    def _plan_guesses(self, plan: StepPlan, num_tokens: int) -> int:
        """Add what was proposed to the decodes, at most `num_tokens` in all; nobody loses a block for a guess. Returns
        how many.
        """
        proposed, self._proposed = self._proposed, {}
        left, num_spare = num_tokens, max(0, self.allocator.num_free - len(self._running))
        for chunk in plan.chunks:
            num_drafts = proposed.get(chunk.request_id, 0)
            if not num_drafts:
                continue
            state = self._states[chunk.request_id]
            num_drafts = min(num_drafts, left, state.max_cached - state.num_tokens)
            num_missing = self.config.blocks_for(state.num_tokens + num_drafts) - len(state.block_table)
            if num_missing > 0:
                num_missing = min(num_missing, num_spare)
                num_spare -= num_missing
                state.block_table += self.allocator.allocate(num_missing, state.request_id)
                num_drafts = min(num_drafts, len(state.block_table) * self.config.block_size - state.num_tokens)
            chunk.num_drafts = num_drafts
            chunk.num_tokens += num_drafts
            left -= num_drafts
        return num_tokens - left

    def _plan_prefill(self, plan: StepPlan, prefilling: list[SequenceState], budget: PrefillBudget) -> None:
        """Spend the budget on prompts, in order of rank over those begun and those waiting."""
        begun = iter(prefilling)
        following = next(begun, None)
        waiting = self._next_waiting(plan) if budget.left > 0 and not plan.preempted else None
        granted: list[tuple[SequenceState, int]] = []
        while budget.left > 0:
            if waiting is not None and (following is None or waiting[0].rank < following.rank):
                state, ready = waiting
                if budget.is_splinter(state.num_remaining - len(ready) * self.config.block_size):
                    break
                self._admit(state, ready, plan)
                waiting = self._next_waiting(plan)
            elif following is not None and not budget.is_splinter(following.num_remaining):
                state, following = following, next(begun, None)
            else:
                break
            granted.append((state, budget.grant(state)))
        for state, least in granted:
            num_tokens = budget.extend(state, least)
            if num_tokens:
                end = state.num_computed + num_tokens
                self._num_recomputed += max(0, min(end, state.furthest) - state.num_computed)
                plan.chunks.append(chunk_of(state, num_tokens))

    def _next_waiting(self, plan: StepPlan) -> _Candidate | None:
        """The head of the queue, if the batch has a place and the cache has blocks for it. Those before it who begin
        with what is being computed step aside.
        """
        while (head := self._waiting.head()) is not None and len(self._running) < self.config.max_batch_size:
            if head is self._blocked and (shortage := self._shortage(self._blocks_needed)):
                self._num_short = shortage
                return None
            ready, promised = self._prefixes.find(head)
            if promised is not None and head.num_waits < MAX_WAITS:
                head.num_waits += 1
                self._waiting.park(head)
                self._prefixes.wait(head, promised)
                continue
            num_held = sum(self.allocator.owner_of(entry.block) is not None for entry in ready)
            self._blocks_needed = self._blocks_to_admit(head) - num_held
            self._num_short = self._shortage(self._blocks_needed)
            if not self._num_short:
                return head, ready
            self._blocked = head
            return None
        return None

    def _shortage(self, num_blocks: int) -> int:
        """Free blocks that are lacking to give so many to a newcomer, who would soon lose all that it has computed if
        none were left for those who run.
        """
        num_left = self.allocator.num_free - num_blocks
        if num_left >= NUM_GROWTH * len(self._running):
            return 0
        blocks_for = self.config.blocks_for
        growth = sum(min(NUM_GROWTH, blocks_for(one.max_cached) - len(one.block_table)) for one in self._running)
        return max(0, growth - num_left)

    def _go_on(self, states: list[SequenceState]) -> None:
        """What these waited for is there, or will never be."""
        for state in reversed(states):
            self._waiting.unpark(state)

    def _blocks_to_admit(self, state: SequenceState) -> int:
        """Blocks for all known tokens and one more, but never more than the request will ever store."""
        return self.config.blocks_for(min(state.num_tokens + 1, state.max_cached))

    def _admit(self, state: SequenceState, ready: list[CachedBlock], plan: StepPlan) -> None:
        self._blocked = None
        self._begin(state, self._blocks_to_admit(state), [entry.block for entry in ready])
        self._prefixes.begin(state, ready)
        insort(self._running, state, key=_rank)
        limit = self.config.max_prefill_tokens
        state.is_long = limit is not None and state.num_remaining > limit
        plan.admitted[state.request_id] = state.num_computed
        if state.block_content is not None and not state.num_preemptions:
            self._num_query_tokens += state.num_tokens
            self._num_hit_tokens += state.num_computed

    def _held_back(self, plan: StepPlan) -> HeldBack | None:
        """Who waits in spite of being first, and why."""
        num_free = self.allocator.num_free
        head = self._waiting.head()
        if head is None:
            head = self._waiting.first_parked()
            if head is None:
                return None
            assert head.awaits is not None and head.awaits.leader is not None, head
            leader = head.awaits.leader
            by = (leader.request_id, len(leader.block_table))
            return HeldBack(head.request_id, "prefix", self._blocks_to_admit(head), num_free, (by,))
        num_needed = self._blocks_to_admit(head)
        if len(self._running) >= self.config.max_batch_size:
            return HeldBack(head.request_id, "batch_full", num_needed, num_free)
        if plan.preempted:
            self._num_short = self._shortage(num_needed)
        if not self._num_short:
            return HeldBack(head.request_id, "budget", num_needed, num_free)
        num_needed = num_free + self._num_short  # less what it shares with others, and room for those to grow
        most = nlargest(NUM_HOLDERS, self._running, key=lambda state: len(state.block_table))
        holders = tuple((state.request_id, len(state.block_table)) for state in most)
        return HeldBack(head.request_id, "blocks", num_needed, num_free, holders)

    def _store(self, state: SequenceState, *, may_read: bool) -> None:
        self._prefixes.fill(state, may_read=may_read)

    def _leave(self, state: SequenceState) -> None:
        if state.status is SequenceStatus.RUNNING:
            self._running.remove(state)
            self._prefixes.leave(state)
        else:
            self._prefixes.stop_waiting(state)
            self._stop_waiting(state)
