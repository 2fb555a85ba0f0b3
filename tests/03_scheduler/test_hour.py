"""One hour of random traffic on a virtual clock: ten thousand requests, a cache that is far too small.

Poisson arrivals in quiet and busy times, four priorities, three tenants, prompts out of a few texts and conversations
that go on, cancels, deadlines, single failures and failed steps, guesses right and wrong. Each request must end exactly
once, as asked; whatever is taken from the cache must be what the request has there; and whenever nobody is left, all
blocks are free.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest

from aie_scheduler import ContinuousBatcher, QueueFullError, Request, SchedulerConfig, StepPlan

SIZE, NUM_BLOCKS, MAX_LEN = 8, 44, 300
HOUR_S = 3600.0


class Hour:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.scheduler = ContinuousBatcher(
            SchedulerConfig(
                max_batch_size=12,
                max_batch_tokens=96,
                block_size=SIZE,
                num_blocks=NUM_BLOCKS,
                max_seq_len=MAX_LEN,
                max_queue=40,
                max_prefill_tokens=48,
                max_bypass=16,
            )
        )
        self.texts = [bytes(self.draw.randrange(256) for _ in range(MAX_LEN)) for _ in range(4)]
        self.tokens: dict[str, bytearray] = {}  # of live requests
        self.wanted: dict[str, int] = {}  # length at the end
        self.past: list[bytes] = []
        self.blocks: dict[int, bytes] = {}  # block → all tokens up to its end, when it was last filled
        self.endings: Counter[str] = Counter()
        self.num_added = 0
        self.num_idle = 0
        self.now = 0.0

    def arrive(self) -> None:
        draw, name = self.draw, f"r{self.num_added}"
        stem = draw.choice(self.past) if self.past and draw.random() < 0.3 else draw.choice(self.texts)
        shared = stem[: draw.randrange(160)] if draw.random() < 0.7 else b""
        prompt = bytearray(shared + draw.randbytes(draw.randrange(1, 60)))
        max_tokens = draw.randrange(1, 80)
        self.num_added += 1
        self.tokens[name] = prompt
        request = Request(
            request_id=name,
            prompt_len=len(prompt),
            max_tokens=max_tokens,
            priority=draw.choice([0, 0, 0, 1, 2, -1]),
            arrival_s=self.now,
            deadline_s=self.now + draw.uniform(0.1, 30) if draw.random() < 0.05 else None,
            client=draw.choice(["", "a", "b"]),
            cache_salt=draw.choice(["", "", "x"]),
            block_content=lambda index: bytes(prompt[index * SIZE : (index + 1) * SIZE]),
        )
        try:
            self.scheduler.add(request)
        except QueueFullError:
            del self.tokens[name]
            self.endings["refused"] += 1
            return
        self.wanted[name] = len(prompt) + draw.randrange(1, max_tokens + 1)

    def end(self, name: str, how: str) -> None:
        self.endings[how] += 1
        tokens = self.tokens.pop(name)  # KeyError: it has ended already
        self.past = [*self.past[-7:], bytes(tokens)]
        del self.wanted[name]

    def step(self) -> None:
        draw, scheduler = self.draw, self.scheduler
        right: dict[str, int] = {}
        for name in draw.sample([*self.tokens], min(len(self.tokens), draw.randrange(4))):
            scheduler.propose(name, draw.randrange(6))
            right[name] = draw.randrange(6)
        plan = scheduler.schedule(self.now)
        if plan is None:
            return
        for name in plan.expired:
            self.end(name, "expired")
        self.now += 0.003 + 0.0004 * plan.num_tokens
        for name, num_tokens in plan.admitted.items():
            self.check_hit(name, num_tokens)
        if draw.random() < 0.01 and self.tokens:
            name = draw.choice([*self.tokens])
            assert scheduler.cancel(name)
            self.end(name, "cancelled")
        if draw.random() < 0.002:
            for chunk in plan.chunks:
                if scheduler.fail(chunk.request_id):
                    self.end(chunk.request_id, "failed")
            return
        finished, accepted = self.sample(plan, right)
        scheduler.update(plan, finished, accepted)
        for name in finished:
            self.end(name, "done")

    def check_hit(self, name: str, num_tokens: int) -> None:
        state = self.scheduler.state_of(name)
        assert state is not None and num_tokens < state.num_tokens
        for index in range(num_tokens // SIZE):
            block = state.block_table[index]
            assert self.blocks[block] == state.cache_salt.encode() + b":" + self.tokens[name][: (index + 1) * SIZE]

    def sample(self, plan: StepPlan, right: dict[str, int]) -> tuple[list[str], dict[str, int]]:
        finished, accepted = [], {}
        for chunk in plan.chunks:
            name = chunk.request_id
            if name not in self.tokens:
                continue  # cancelled meanwhile
            if self.draw.random() < 0.0005:
                assert self.scheduler.fail(name)
                self.end(name, "failed")
                continue
            tokens, num_new = self.tokens[name], 0
            if chunk.samples:
                num_new = min(1 + min(chunk.num_drafts, right.get(name, 0)), self.wanted[name] - len(tokens))
                tokens += self.draw.randbytes(num_new)
                accepted[name] = num_new
                if len(tokens) == self.wanted[name]:
                    finished.append(name)
            num_computed = chunk.start + chunk.num_tokens - chunk.num_drafts + max(0, num_new - 1)
            salt = self.scheduler.state_of(name).cache_salt.encode() + b":"  # type: ignore[union-attr]
            for index in range(chunk.start // SIZE, -(-(chunk.start + chunk.num_tokens) // SIZE)):
                is_full = (index + 1) * SIZE <= num_computed
                self.blocks[chunk.block_table[index]] = salt + tokens[: (index + 1) * SIZE] if is_full else b""
        return finished, accepted

    def run(self) -> None:
        next_arrival_s = 0.0
        while self.now < HOUR_S or self.scheduler.has_work:
            while next_arrival_s <= min(self.now, HOUR_S):
                self.arrive()
                busy = int(self.now / 60) % 10 == 0  # every tenth minute
                next_arrival_s += self.draw.expovariate(20.0 if busy else 1.0)
            if self.scheduler.has_work:
                self.step()
                continue
            self.num_idle += 1
            stats = self.scheduler.stats()
            assert (stats.num_free_blocks, stats.num_running, stats.num_waiting) == (NUM_BLOCKS, 0, 0)
            assert not self.tokens
            self.now = max(self.now, next_arrival_s)


@pytest.mark.parametrize("seed", [0])
def test_everybody_ends_once_and_every_block_comes_back(seed: int) -> None:
    hour: Any = Hour(seed)
    hour.run()
    stats = hour.scheduler.stats()
    assert hour.num_added > 9000 and hour.num_idle > 1000
    assert sum(hour.endings.values()) == hour.num_added
    assert {*hour.endings} == {"done", "cancelled", "failed", "expired", "refused"}
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_preemptions > 100
    assert 0.1 < stats.prefix_hit_tokens / stats.prefix_query_tokens < 0.9
    assert all(entry.is_ready for entry in hour.scheduler._prefixes._entries.values())
    assert not hour.scheduler._waiting._parked
