"""A model small enough to predict in the head, on which the whole engine runs, and a clock that tests move."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_engine import EngineConfig, EngineInfo, EngineParts, GenerateRequest, SamplingParams, TokenEvent
from aie_engine.assembler import BatchAssembler
from aie_engine.batch import StepBatch
from aie_engine.block_book import BlockBook
from aie_engine.core import EngineCore
from aie_engine.memory import EngineMemory
from aie_engine.speculation import Speculator
from aie_scheduler import BlockAllocator, ContinuousBatcher, SchedulerConfig

VOCAB = 97


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def next_token(context: Sequence[int], num_words: int = VOCAB) -> int:
    """The fake model: what follows depends on every token before it and on their order. With few words its text repeats
    itself in parts."""
    value = 7
    for token in context:
        value = (value * 31 + token + 1) % 100_003
    return value % num_words


def continuation(prompt: Sequence[int], num_tokens: int, num_words: int = VOCAB) -> tuple[int, ...]:
    """What the fake model answers to a prompt, worked out without an engine."""
    known = list(prompt)
    for _ in range(num_tokens):
        known.append(next_token(known, num_words))
    return tuple(known[len(prompt) :])


class FakeExecutor:
    """Keeps tokens instead of keys and values in the paged cache, so a wrong block or position changes the text."""

    kernels = "numpy"

    def __init__(self, num_blocks: int, block_size: int, num_words: int = VOCAB) -> None:
        self.block_size = block_size
        self.num_words = num_words
        self.slots = np.full((num_blocks, block_size), -1)
        self.failures: list[Exception | None] = []  # what the next runs raise
        self.not_numbers: set[int] = set()  # first tokens of prompts whose logits are NaN
        self.batches: list[list[tuple[int, ...]]] = []  # context lengths and tokens of each run
        self.is_closed = False
        self.on_run: Callable[[], None] = lambda: None

    def run(self, batch: StepBatch) -> np.ndarray:
        self.on_run()
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.batches.append(list(zip(batch.context_lens.tolist(), np.diff(batch.seq_starts).tolist(), strict=True)))
        for s in range(batch.num_sequences):
            self._store(batch, s)
        return np.array([self._logits(batch, row) for row in batch.logit_rows], np.float32).reshape(-1, VOCAB)

    def argmax_rows(self, logits: np.ndarray) -> np.ndarray:
        return logits.argmax(axis=1).astype(np.int32)

    def close(self) -> None:
        self.is_closed = True

    def _store(self, batch: StepBatch, s: int) -> None:
        own = slice(batch.seq_starts[s], batch.seq_starts[s + 1])
        blocks = batch.block_tables[s]
        for token, position in zip(batch.token_ids[own], batch.positions[own], strict=True):
            self.slots[blocks[position // self.block_size], position % self.block_size] = token

    def _logits(self, batch: StepBatch, token_row: int) -> np.ndarray:
        s = int(np.searchsorted(batch.seq_starts, token_row, side="right")) - 1
        num = int(batch.positions[token_row]) + 1
        context = self.slots[batch.block_tables[s][: -(-num // self.block_size)]].reshape(-1)[:num].tolist()
        row = np.zeros(VOCAB, np.float32)
        row[next_token(context, self.num_words)] = 10.0
        return row * np.nan if context[0] in self.not_numbers else row


@dataclass
class Rig:
    """A core on the fake model, and everything around it that a test may look at or break."""

    core: EngineCore
    executor: FakeExecutor
    allocator: BlockAllocator
    clock: FakeClock
    parts: EngineParts
    events: dict[str, list[TokenEvent]] = field(default_factory=dict)
    scheduler: Any = None

    def add(self, request_id: str, prompt: Sequence[int], num_tokens: int = 5, **wishes: Any) -> None:
        self.core.add(ask(request_id, prompt, num_tokens, **wishes))

    def step(self) -> list[TokenEvent]:
        events = self.core.step()
        for event in events:
            self.events.setdefault(event.request_id, []).append(event)
        return events

    def run(self, limit: int = 2000) -> None:
        """Until there is nothing left to do."""
        for _ in range(limit):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def tokens(self, request_id: str) -> tuple[int, ...]:
        return tuple(token for event in self.events[request_id] for token in event.token_ids)

    def last(self, request_id: str) -> TokenEvent:
        """The final event, which must be the only one with a finish reason."""
        *before, last = self.events[request_id]
        assert last.finish_reason is not None and all(event.finish_reason is None for event in before)
        return last

    @property
    def all_blocks_free(self) -> bool:
        return self.allocator.num_free == self.allocator.num_blocks


def ask(request_id: str, prompt: Sequence[int], num_tokens: int = 5, **wishes: Any) -> GenerateRequest:
    fields = ("deadline_s", "priority", "client", "cache_salt", "constraint")
    of_request = {name: wishes.pop(name) for name in fields if name in wishes}
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": num_tokens, **wishes})
    return GenerateRequest(request_id, tuple(prompt), sampling, **of_request)


def make_rig(
    *, num_blocks: int = 64, block_size: int = 4, eos: tuple[int, ...] = (), seed: int = 0, memdebug: bool = False,
    max_batch_size: int = 8, max_batch_tokens: int = 32, max_seq_len: int = 128, max_queue: int = 16,
    num_words: int = VOCAB, speculate: int = 0, max_drafts: int = 12, prefix_caching: bool = True, max_rows: int = 32,
    masks: Any = None,
) -> Rig:  # fmt: skip
    clock, memory = FakeClock(), EngineMemory(EngineConfig(Path("unused"), memdebug=memdebug), model="fake")
    executor = FakeExecutor(num_blocks, block_size, num_words)
    book = BlockBook(memory.pool, num_blocks, 64)
    allocator = BlockAllocator(num_blocks, on_allocate=book.on_allocate, on_free=book.on_free)
    limits: dict[str, int] = {
        "max_batch_size": max_batch_size, "max_batch_tokens": max_batch_tokens, "max_seq_len": max_seq_len,
        "block_size": block_size,
    }  # fmt: skip
    scheduler = ContinuousBatcher(
        SchedulerConfig(
            num_blocks=num_blocks, max_queue=max_queue + max_batch_size, prefix_caching=prefix_caching, **limits
        ),
        allocator=allocator,
    )
    assembler = BatchAssembler(**limits, pool=memory.pool)
    core = EngineCore(
        scheduler, executor, assembler, eos_token_ids=eos, pool=memory.pool, seed=seed, clock=clock,
        block_size=block_size if prefix_caching else None, max_rows=max_rows, masks=masks,
        speculator=Speculator(scheduler, most=speculate, max_drafts=max_drafts) if speculate else None,
    )  # fmt: skip
    info = EngineInfo(
        "fake", max_seq_len, VOCAB, max_batch_size, num_blocks, block_size, "numpy", 1, eos, max_queue=max_queue
    )

    def close() -> None:
        for part in (executor, assembler, book, memory):
            part.close()

    parts = EngineParts(core, info, memory, close)
    return Rig(core, executor, allocator, clock, parts, scheduler=scheduler)


@pytest.fixture
def rig() -> Rig:
    return make_rig()


@pytest.fixture(scope="session")
def new_rig() -> Callable[..., Rig]:
    return make_rig


@pytest.fixture(scope="session")
def request_for() -> Callable[..., GenerateRequest]:
    """(id, prompt, num_tokens, **sampling or request fields) → a greedy request."""
    return ask


@pytest.fixture(scope="session")
def answer() -> Callable[..., tuple[int, ...]]:
    """(prompt, num_tokens, num_words) → what the fake model says."""
    return continuation
