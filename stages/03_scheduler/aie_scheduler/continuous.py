"""Continuous batching: requests join and leave the batch at every step.

Yu et al. 2022 ("Orca: A Distributed Serving System for Transformer-Based Generative Models") schedule by iteration
instead of by request; Agrawal et al. 2024 ("Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve")
cut long prompts into chunks, so that a step's work stays bounded and nobody's decode waits for somebody's prompt.
Each step:

1. Decode. Every running sequence with one token to do gets it, in order of rank (priority, then arrival).
2. Prefill. What is left of `max_batch_tokens` goes to prompts in order of rank: those begun, and those waiting, who are
   admitted when a place in the batch and blocks for *all* their known tokens plus one are free. The blocks are taken at
   admission: to admit on the first chunk alone promises the same free blocks to several prompts.
   A prompt that cannot finish in this step leaves a part (1 - `prefill_share`) to those behind it, so that eight tokens
   need not wait for eight thousand; what nobody wants goes back to the first.

When a decode finds no free block, the running sequence of the last rank is preempted: it loses its blocks, keeps its
tokens, goes to the front of the queue and is recomputed later. No request is ever killed for lack of memory.

Why it always goes on: `running` is sorted by rank and victims are taken from its end, so a planned chunk is never
revoked and the first sequence is never a victim of another; alone, it fits, or `add` would have refused it. Likewise
the queue's head fits once nothing runs. A victim is not admitted in the step that preempts it: it needs at least as
many blocks as it gave up, and one of those is taken. And the queue is strictly in order: nobody small overtakes a big
request until it starves.

Cost: O(1) per running sequence and step, O(running) to admit or release one.
"""

from bisect import insort
from operator import attrgetter

from aie_scheduler.base import SchedulerBase, chunk_of
from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.plan import Preemption, StepPlan
from aie_scheduler.request import SequenceState, SequenceStatus
from aie_tensor import InvalidInputError

__all__ = ["ContinuousBatcher"]

_rank = attrgetter("rank")


class ContinuousBatcher(SchedulerBase):
    """Mixed prefill and decode under one token budget, over paged KV blocks."""

    def __init__(self, config: SchedulerConfig, *, allocator: BlockAllocator | None = None) -> None:
        super().__init__(config, allocator=allocator)
        if config.num_blocks < 1:
            raise InvalidInputError("continuous batching needs a KV cache: num_blocks is 0", param="num_blocks")
        self._running: list[SequenceState] = []  # ascending rank; who stands last is preempted first

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None when no request is left."""
        plan = StepPlan(expired=self._expire(now))
        prefilling = self._plan_decodes(plan)
        self._plan_prefill(plan, prefilling, self.config.max_batch_tokens - len(plan.chunks))
        return self._count(plan)

    def _plan_decodes(self, plan: StepPlan) -> list[SequenceState]:
        """One token for every running sequence that has one to do; returns those with more, in order of rank."""
        prefilling: list[SequenceState] = []
        running, chunks, block_size = self._running, plan.chunks, self.config.block_size
        index = 0
        while index < len(running):  # victims leave from the end while this loop runs
            state = running[index]
            index += 1
            if state.num_tokens - state.num_computed > 1:
                prefilling.append(state)
                continue
            if len(state.block_table) * block_size < state.num_tokens and not self._grow(state, plan):
                break
            chunks.append(chunk_of(state, 1))
        return prefilling

    def _grow(self, state: SequenceState, plan: StepPlan) -> bool:
        """One more block for a running sequence, taken from the last in rank if need be; False if that was itself."""
        assert state.num_tokens <= state.max_cached, f"{state} has all its tokens, but was never finished"
        while self.allocator.num_free == 0:
            victim = self._running.pop()
            plan.preempted.append(Preemption(victim.request_id, state.request_id, victim.num_computed))
            self._preempt(victim)
            if victim is state:
                return False
        state.block_table += self.allocator.allocate(1, state.request_id)
        return True

    def _preempt(self, state: SequenceState) -> None:
        """Back to the front of the queue without blocks. Its tokens stay known, so none is ever sampled twice."""
        self._release_blocks(state)
        state.num_computed = 0
        state.status = SequenceStatus.PREEMPTED
        state.num_preemptions += 1
        self._num_preemptions += 1
        self._fair.join(state)
        self._waiting.push_front(state)

    def _plan_prefill(self, plan: StepPlan, prefilling: list[SequenceState], budget: int) -> None:
        """Spend `budget` tokens on prompts, in order of rank over those begun and those waiting."""
        begun = iter(prefilling)
        following = next(begun, None)
        granted: list[tuple[SequenceState, int]] = []
        while budget > 0:
            candidate = self._admissible()
            if candidate is None or (following is not None and following.rank < candidate.rank):
                candidate = following
            if candidate is None:
                break
            if granted and budget < min(candidate.num_remaining, self.config.block_size):
                break  # a splinter of a prompt costs more than it brings
            num_tokens = self._grant(candidate, budget)
            if candidate is following:
                following = next(begun, None)
            else:
                self._admit(candidate)
            granted.append((candidate, num_tokens))
            budget -= num_tokens
        for state, num_tokens in granted:  # what nobody behind them wanted
            extra = min(budget, state.num_remaining - num_tokens)
            budget -= extra
            plan.chunks.append(chunk_of(state, num_tokens + extra))

    def _grant(self, state: SequenceState, budget: int) -> int:
        """Tokens for this prompt: all it has if they fit into its share of the budget, else that share."""
        if state.num_remaining <= budget:
            return state.num_remaining
        return max(int(budget * self.config.prefill_share), min(budget, self.config.block_size))

    def _admissible(self) -> SequenceState | None:
        """The head of the queue, if the batch has a place and the cache has blocks for it."""
        head = self._waiting.head()
        if head is None or len(self._running) >= self.config.max_batch_size:
            return None
        return head if self._blocks_to_admit(head) <= self.allocator.num_free else None

    def _blocks_to_admit(self, state: SequenceState) -> int:
        """Blocks for all known tokens and one more, but never more than the request will ever store."""
        return self.config.blocks_for(min(state.num_tokens + 1, state.max_cached))

    def _admit(self, state: SequenceState) -> None:
        self._begin(state, self._blocks_to_admit(state))
        insort(self._running, state, key=_rank)

    def _leave(self, state: SequenceState) -> None:
        if state.status is SequenceStatus.RUNNING:
            self._running.remove(state)
        else:
            self._stop_waiting(state)
