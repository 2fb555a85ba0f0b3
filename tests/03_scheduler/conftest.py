"""A pretended engine: drives any scheduler step by step and checks everything that must hold at every step.

It has tokens and a KV cache of its own, one token per slot: a chunk writes its tokens into the blocks of its table, and
before it does, all that it builds on must be there. So a block that is handed out twice, shared too early or written
over shows at once, whoever did it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from aie_scheduler import ContinuousBatcher, Request, Scheduler, SchedulerConfig, StepPlan

NONSENSE = -2  # a token that no prompt has
WRONG = -1  # a guess that no context is ever continued with


def next_token(context: Sequence[int]) -> int:
    """What the pretended model says: any fixed function of all tokens so far."""
    return hash(tuple(context)) % 997


def to_bytes(tokens: Sequence[int]) -> bytes:
    """A block's content as the scheduler is given it."""
    return b"".join(token.to_bytes(4, "little", signed=True) for token in tokens)


class Driver:
    """Runs plans against its own simple idea of each request, and fails when a scheduler's idea differs."""

    def __init__(self, make: Callable[..., Any] = ContinuousBatcher, **config: Any) -> None:
        defaults: dict[str, Any] = {
            "max_batch_size": 8,
            "max_batch_tokens": 32,
            "block_size": 4,
            "num_blocks": 64,
            "max_seq_len": 256,
        }
        self.config = SchedulerConfig(**(defaults | config))
        self.scheduler: Any = make(self.config)
        assert isinstance(self.scheduler, Scheduler)
        self.now = 0.0
        self.steps: list[StepPlan] = []
        self.prompt: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.sampled: dict[str, int] = {}
        self.hits: dict[str, list[int]] = {}  # request → tokens that the cache spared it, at each admission
        self.first_step: dict[str, int] = {}
        self.ended: dict[str, str] = {}  # request → how
        self.tokens: dict[str, list[int]] = {}
        self.guesses: dict[str, list[int]] = {}
        self.slots: dict[tuple[int, int], int] = {}  # the KV cache: (block, offset) → token
        self.num_reads = 0  # of block contents
        self._num_added = 0
        self._closers: dict[str, list[bool]] = {}

    def add(
        self, request_id: str, prompt_len: int, output_len: int, *, tokens: Sequence[int] | None = None, **fields: Any
    ) -> None:
        """`tokens`: of the prompt; else those that no other request has."""
        self._num_added += 1
        prompt = list(tokens) if tokens is not None else [1000 * self._num_added + i for i in range(prompt_len)]
        assert len(prompt) == prompt_len
        closed: list[bool] = []

        def content(index: int) -> bytes:
            assert not closed, f"tokens of {request_id} are read after its end"
            block = prompt[index * self.config.block_size : (index + 1) * self.config.block_size]
            assert len(block) == self.config.block_size, f"block {index} of {request_id} is not full"
            self.num_reads += 1
            return to_bytes(block)

        fields.setdefault("max_tokens", output_len)
        fields.setdefault("arrival_s", self.now)
        fields.setdefault("block_content", content)
        self.scheduler.add(Request(request_id=request_id, prompt_len=prompt_len, **fields))
        self.prompt[request_id], self.wanted[request_id] = prompt_len, output_len
        self.computed[request_id] = self.sampled[request_id] = 0
        self.tokens[request_id], self.hits[request_id] = prompt, []
        self._closers[request_id] = closed

    def cancel(self, request_id: str, how: str = "cancelled") -> bool:
        known: bool = (self.scheduler.cancel if how == "cancelled" else self.scheduler.fail)(request_id)
        assert known == (request_id in self.prompt and request_id not in self.ended), request_id
        if known:
            self.end(request_id, how)
        return known

    def fail(self, request_id: str) -> bool:
        return self.cancel(request_id, "failed")

    def end(self, request_id: str, how: str) -> None:
        assert request_id not in self.ended, f"{request_id} ended twice: {self.ended[request_id]} and {how}"
        self.ended[request_id] = how
        self._closers[request_id].append(True)

    def propose(self, request_id: str, num_right: int, num_wrong: int = 0) -> None:
        """Guess: first so many right tokens, then wrong ones."""
        known = [*self.tokens[request_id]]
        for _ in range(num_right):
            known.append(next_token(known))
        self.guesses[request_id] = known[len(self.tokens[request_id]) :] + [WRONG] * num_wrong
        self.scheduler.propose(request_id, num_right + num_wrong)

    def schedule(self) -> StepPlan | None:
        guesses, self.guesses = self.guesses, {}
        plan: StepPlan | None = self.scheduler.schedule(self.now)
        if plan is None:
            return None
        self.guesses = guesses
        for request_id in plan.expired:
            self.end(request_id, "expired")
        for lost in plan.preempted:
            assert self.computed[lost.request_id] == lost.lost_tokens, f"{lost}, not {self.computed}"
            assert lost.by in self.prompt and lost.by not in self.ended, lost
            self.computed[lost.request_id] = 0
        for request_id, num_tokens in plan.admitted.items():
            assert num_tokens % self.config.block_size == 0, plan.admitted
            self.computed[request_id] = num_tokens
            self.hits[request_id].append(num_tokens)
        self.check(plan)
        self.compute(plan)
        return plan

    def check(self, plan: StepPlan) -> None:
        config, ids = self.config, [chunk.request_id for chunk in plan.chunks]
        assert len(ids) == len(set(ids)) <= config.max_batch_size, ids
        assert plan.num_tokens <= config.max_batch_tokens, plan
        assert not {*ids} & ({*plan.expired} | {lost.request_id for lost in plan.preempted} | {*self.ended}), plan
        written: list[int] = []
        read: list[int] = []
        for chunk in plan.chunks:
            request_id, end = chunk.request_id, chunk.start + chunk.num_tokens
            known = self.prompt[request_id] + self.sampled[request_id]
            assert chunk.start == self.computed[request_id], (chunk, self.computed[request_id])
            assert 0 < chunk.num_tokens - chunk.num_drafts <= known - chunk.start, (chunk, known)
            assert 0 <= chunk.num_drafts <= len(self.guesses.get(request_id, ())), chunk
            assert chunk.samples == (end - chunk.num_drafts == known), (chunk, known)
            assert chunk.samples or not chunk.num_drafts, chunk
            if self.scheduler.allocator.num_blocks:
                assert len(chunk.block_table) * config.block_size >= end, f"no block for the last token of {chunk}"
                first = chunk.start // config.block_size
                read += chunk.block_table[:first]
                written += chunk.block_table[first:]
            assert len(chunk.block_table) == len(set(chunk.block_table)), chunk
        assert len(written) == len(set(written)), f"a block that is written is in two tables: {plan}"
        assert not {*written} & {*read}, f"a block that is written is shared: {plan}"
        if plan.held is not None:
            assert plan.held.request_id not in self.ended and plan.held.request_id not in ids, plan
            if plan.held.reason == "blocks" and not plan.preempted:
                assert plan.held.blocks_needed > plan.held.blocks_free, plan.held

    def compute(self, plan: StepPlan) -> None:
        """Write each chunk into the cache, after looking whether what it builds on is there."""
        size = self.config.block_size
        for chunk in plan.chunks:
            table, known = chunk.block_table, self.tokens[chunk.request_id] + self.guesses.get(chunk.request_id, [])
            for position in range(chunk.start if table else 0):
                slot = table[position // size], position % size
                assert self.slots.get(slot) == known[position], f"position {position} of {chunk} holds something else"
        for chunk in plan.chunks:
            table, known = chunk.block_table, self.tokens[chunk.request_id] + self.guesses.get(chunk.request_id, [])
            for position in range(chunk.start, chunk.start + chunk.num_tokens) if table else ():
                self.slots[table[position // size], position % size] = known[position]

    def finish(self, plan: StepPlan, early: Collection[str] = ()) -> list[str]:
        finished, accepted = [], {}
        for chunk in plan.chunks:
            request_id = chunk.request_id
            if request_id in self.ended:
                continue  # cancelled while the step ran
            self.first_step.setdefault(request_id, len(self.steps))
            self.computed[request_id] += chunk.num_tokens - chunk.num_drafts
            if chunk.samples:
                guesses = iter(self.guesses.get(request_id, [])[: chunk.num_drafts])
                num_new = 0
                while self.sampled[request_id] < self.wanted[request_id]:
                    token = next_token(self.tokens[request_id])
                    self.tokens[request_id].append(token)
                    self.sampled[request_id] += 1
                    num_new += 1
                    if next(guesses, None) != token:
                        break
                accepted[request_id] = num_new
                self.computed[request_id] += num_new - 1
            if self.sampled[request_id] == self.wanted[request_id] or request_id in early:
                finished.append(request_id)
                self._closers[request_id].append(True)
        self.scheduler.update(plan, finished, accepted)
        self.guesses = {}
        self.steps.append(plan)
        for request_id in finished:
            self.end(request_id, "done")
        return finished

    def spoil(self, plan: StepPlan, request_ids: Collection[str]) -> None:
        """The step went wrong for these: their part of the cache holds nonsense, and they fail."""
        for chunk in plan.chunks:
            if chunk.request_id in request_ids and chunk.request_id not in self.ended:
                for position in range(chunk.start, chunk.start + chunk.num_tokens) if chunk.block_table else ():
                    block = chunk.block_table[position // self.config.block_size]
                    self.slots[block, position % self.config.block_size] = NONSENSE
                self.fail(chunk.request_id)

    def step(self) -> StepPlan | None:
        plan = self.schedule()
        if plan is not None:
            self.finish(plan)
        return plan

    def run(self, max_steps: int = 10_000) -> list[StepPlan]:
        first = len(self.steps)
        for _ in range(max_steps):
            if self.step() is None:
                moment = self.scheduler.next_deadline(self.now)
                if moment is None:
                    break
                assert moment > self.now, f"stalled: {self.scheduler.stats()}"
                self.now = moment
        else:
            pytest.fail(f"still at work after {max_steps} steps: {self.scheduler.stats()}")
        self.check_empty()
        return self.steps[first:]

    def check_books(self) -> None:
        """Every block is free or held by exactly those whose table it is in."""
        scheduler, alive = self.scheduler, [name for name in self.prompt if name not in self.ended]
        states = [scheduler.state_of(name) for name in alive]
        assert None not in states
        holders = Counter(block for state in states for block in state.block_table)
        allocator, stats = scheduler.allocator, scheduler.stats()
        assert len(holders) + stats.num_free_blocks == stats.num_blocks, "a block is lost"
        assert all(allocator.num_holders(block) == holders[block] for block in range(stats.num_blocks))
        owned = {block: allocator.owner_of(block) for block in holders}
        assert all(any(s.request_id == owned[b] and b in s.block_table for s in states) for b in owned), owned
        assert 0 <= stats.num_cached_blocks <= stats.num_free_blocks
        assert stats.num_waiting + stats.num_running == len(alive)

    def check_cache(self) -> None:
        """What the prefix cache promises to hold is in the KV cache, and who is waited for runs."""
        prefixes, allocator = self.scheduler._prefixes, self.scheduler.allocator
        parents = {entry.serial: entry for entry in prefixes._entries.values()}
        assert len(parents) == len(prefixes._entries)
        num_cached = 0
        for key, entry in prefixes._entries.items():
            assert key == entry.key
            if entry.is_ready:
                assert entry.leader is None and not entry.followers and prefixes._ready[entry.block] is entry
                tokens = [self.slots[entry.block, offset] for offset in range(self.config.block_size)]
                assert key[1] == to_bytes(tokens), f"block {entry.block} holds {tokens}"
                num_cached += allocator.num_holders(entry.block) == 0
            else:
                assert entry.leader.block_table and entry.leader is self.scheduler.state_of(entry.leader.request_id)
                assert all(state.awaits is entry and not state.block_table for state in entry.followers.values())
        assert len(prefixes._ready) == sum(entry.is_ready for entry in parents.values())
        assert num_cached == allocator.num_cached

    def check_empty(self) -> None:
        stats = self.scheduler.stats()
        assert not self.scheduler.has_work
        assert (stats.num_waiting, stats.num_running) == (0, 0), stats
        assert stats.num_free_blocks == stats.num_blocks, stats
        assert {*self.ended} == {*self.prompt}
        self.check_books()
        if isinstance(self.scheduler, ContinuousBatcher):
            self.check_cache()
            assert all(entry.is_ready for entry in self.scheduler._prefixes._entries.values()), "an empty promise"


@pytest.fixture
def make_driver() -> type[Driver]:
    return Driver
