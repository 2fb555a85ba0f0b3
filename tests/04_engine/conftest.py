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
from aie_scheduler import BlockAllocator, ContinuousBatcher, SchedulerConfig

VOCAB = 97


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def next_token(context: Sequence[int]) -> int:
    """The fake model: what follows depends on every token before it and on their order."""
    value = 7
    for token in context:
        value = (value * 31 + token + 1) % 100_003
    return value % VOCAB


def continuation(prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """What the fake model answers to a prompt, worked out without an engine."""
    known = list(prompt)
    for _ in range(num_tokens):
        known.append(next_token(known))
    return tuple(known[len(prompt) :])


class FakeExecutor:
    """Keeps tokens instead of keys and values in the paged cache, so a wrong block or position changes the text."""

    kernels = "numpy"

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = np.full((num_blocks, block_size), -1)
        self.failures: list[Exception | None] = []  # what the next runs raise
        self.not_numbers: set[int] = set()  # first tokens of prompts whose logits are NaN
        self.batches: list[list[tuple[int, ...]]] = []  # context lengths and rows of each run
        self.is_closed = False
        self.on_run: Callable[[], None] = lambda: None

    def run(self, batch: StepBatch) -> np.ndarray:
        self.on_run()
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.batches.append(list(zip(batch.context_lens.tolist(), np.diff(batch.seq_starts).tolist(), strict=True)))
        rows = set(batch.logit_rows.tolist())
        every = [self._sequence(batch, s) for s in range(batch.num_sequences)]
        logits = [row for row, end in zip(every, batch.seq_starts[1:], strict=True) if end - 1 in rows]
        return np.array(logits, np.float32).reshape(-1, VOCAB)

    def argmax_rows(self, logits: np.ndarray) -> np.ndarray:
        return logits.argmax(axis=1).astype(np.int32)

    def close(self) -> None:
        self.is_closed = True

    def _sequence(self, batch: StepBatch, s: int) -> np.ndarray:
        own = slice(batch.seq_starts[s], batch.seq_starts[s + 1])
        blocks = batch.block_tables[s]
        for token, position in zip(batch.token_ids[own], batch.positions[own], strict=True):
            self.slots[blocks[position // self.block_size], position % self.block_size] = token
        num = int(batch.context_lens[s])
        context = self.slots[blocks[: -(-num // self.block_size)]].reshape(-1)[:num].tolist()
        row = np.zeros(VOCAB, np.float32)
        row[next_token(context)] = 10.0
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
    of_request = {name: wishes.pop(name) for name in ("deadline_s", "priority") if name in wishes}
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": num_tokens, **wishes})
    return GenerateRequest(request_id, tuple(prompt), sampling, **of_request)


def make_rig(
    *, num_blocks: int = 64, block_size: int = 4, eos: tuple[int, ...] = (), seed: int = 0, memdebug: bool = False,
    max_batch_size: int = 8, max_batch_tokens: int = 32, max_seq_len: int = 128, max_queue: int = 16,
) -> Rig:  # fmt: skip
    clock, memory = FakeClock(), EngineMemory(EngineConfig(Path("unused"), memdebug=memdebug), model="fake")
    executor = FakeExecutor(num_blocks, block_size)
    book = BlockBook(memory.pool, num_blocks, 64)
    allocator = BlockAllocator(num_blocks, on_allocate=book.on_allocate, on_free=book.on_free)
    limits: dict[str, int] = {
        "max_batch_size": max_batch_size, "max_batch_tokens": max_batch_tokens, "max_seq_len": max_seq_len,
        "block_size": block_size,
    }  # fmt: skip
    scheduler = ContinuousBatcher(
        SchedulerConfig(num_blocks=num_blocks, max_queue=max_queue + max_batch_size, **limits), allocator=allocator
    )
    assembler = BatchAssembler(**limits, pool=memory.pool)
    core = EngineCore(scheduler, executor, assembler, eos_token_ids=eos, pool=memory.pool, seed=seed, clock=clock)
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
def answer() -> Callable[[Sequence[int], int], tuple[int, ...]]:
    """(prompt, num_tokens) → what the fake model says."""
    return continuation
