"""Twenty thousand requests against an engine that has too little of everything: `python benchmarks/soak.py`.

A tiny model with random weights runs natively on a KV cache that holds a fraction of what is asked for, with a prefix
cache and guessed tokens, while requests of all priorities arrive, are cancelled and run out of time, greedy and drawn,
with common beginnings and without. What must hold, whatever happens:

- every request ends exactly once, and nobody hears of it afterwards;
- what it says is, token by token, what it says alone, on an engine without a prefix cache and without guesses (where it
  was cancelled or ran out of time: the beginning of that);
- at the end all KV blocks are free, nothing is open, and the engine's pool holds what it held before.

The exit status is 1 if anything does not.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from aie_engine import EngineConfig, EngineParts, EngineStats, GenerateRequest, SamplingParams, build_engine
from aie_engine.step_cost import StepCost
from aie_loader import write_tiny_llama

VOCAB = 512
MAX_SEQ_LEN = 128
NUM_SUBJECTS = 240  # different requests; each comes again and again
TOKEN_BYTES = 512  # keys and values of one token of the tiny model


@dataclass(frozen=True, slots=True)
class Subject:
    """What may be asked, and what the answer is."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    answer: tuple[int, ...]


@dataclass(slots=True)
class Soak:
    """What was seen."""

    stats: EngineStats
    seconds: float = 0.0
    endings: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    faults: list[str] = field(default_factory=list)  # what must not be


def draw_subjects(draw: random.Random) -> Iterator[tuple[tuple[int, ...], SamplingParams]]:
    """Prompts with common beginnings of several lengths, some of which say the same over and over."""
    systems = [tuple(draw.randrange(VOCAB) for _ in range(length)) for length in (0, 0, 5, 16, 31, 48, 64)]
    for index in range(NUM_SUBJECTS):
        tail = tuple(draw.randrange(VOCAB) for _ in range(draw.randrange(1, 12)))
        prompt = draw.choice(systems) + tail * draw.choice([1, 1, 2, 3])
        sampling = SamplingParams(
            temperature=draw.choice([0.0, 0.0, 0.7, 1.0]),
            top_p=draw.choice([1.0, 0.9]),
            seed=index,
            max_tokens=draw.randrange(1, MAX_SEQ_LEN - len(prompt)),
            ignore_eos=draw.random() < 0.7,
            repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
            logprobs=draw.choice([None, None, None, 0]),
            # Of few words, a text repeats itself, and guesses are made.
            allowed_token_ids=draw.choice([None, tuple(draw.sample(range(VOCAB), draw.randrange(2, 8)))]),
        )
        yield prompt, sampling


def engine_config(model: Path, kernels: str, **wishes: object) -> EngineConfig:
    """One thread, so that many small steps cost no waiting for each other."""
    return EngineConfig(
        model, kernels=kernels, num_threads=1, block_size=8, max_seq_len=MAX_SEQ_LEN, **wishes,  # type: ignore[arg-type]
    )  # fmt: skip


def alone(parts: EngineParts, prompt: tuple[int, ...], sampling: SamplingParams) -> tuple[int, ...]:
    """The answer with nobody else there."""
    parts.core.add(GenerateRequest("alone", prompt, sampling))
    tokens: list[int] = []
    while parts.core.has_work:
        for event in parts.core.step():
            assert event.error is None, event.error
            tokens += event.token_ids
    return tuple(tokens)


class FreeRows(StepCost):
    """Guesses never cost anything here, so that as many are made as may be, right or wrong."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Of no interest."""


class Traffic:
    """Sends requests into a core and follows what becomes of each."""

    def __init__(self, parts: EngineParts, subjects: list[Subject], draw: random.Random) -> None:
        self.endings: Counter[str] = Counter()
        self.num_tokens = 0
        self.faults: list[str] = []
        self._core = parts.core
        self._subjects = subjects
        self._draw = draw
        self._open: dict[str, Subject] = {}
        self._said: dict[str, list[int]] = {}
        self._cancelled: set[str] = set()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def send(self, request_id: str) -> None:
        draw, subject = self._draw, self._draw.choice(self._subjects)
        deadline_s = time.monotonic() + draw.uniform(0.0, 0.2) if draw.random() < 0.03 else None
        self._open[request_id], self._said[request_id] = subject, []
        client = draw.choice("ab")
        self._core.add(
            GenerateRequest(
                request_id,
                subject.prompt,
                subject.sampling,
                deadline_s,
                draw.choice([-1, 0, 0, 0, 1]),
                client,
                cache_salt=draw.choice(["", "", client]),
            )
        )

    def cancel_somebody(self) -> None:
        request_id = self._draw.choice(list(self._open))
        self._cancelled.add(request_id)
        self._core.cancel(request_id)

    def step(self) -> None:
        for event in self._core.step():
            subject = self._open.get(event.request_id)
            if subject is None:
                self.faults.append(f"{event.request_id}: news after its end: {event}")
                continue
            said = self._said[event.request_id]
            said += event.token_ids
            self.num_tokens += len(event.token_ids)
            if event.finish_reason is not None:
                self._end(event.request_id, subject, tuple(said), event.finish_reason)

    def _end(self, request_id: str, subject: Subject, said: tuple[int, ...], reason: str) -> None:
        del self._open[request_id], self._said[request_id]
        self.endings[reason] += 1
        is_whole = reason in ("stop", "length")
        if said != (subject.answer if is_whole else subject.answer[: len(said)]):
            self.faults.append(f"{request_id} ({reason}) says {said}, alone {subject.answer}")
        if not is_whole and reason != "deadline" and request_id not in self._cancelled:
            self.faults.append(f"{request_id} ended with {reason}")


def soak(
    model: Path, num_requests: int, *, seed: int = 0, kernels: str = "native", max_open: int = 40,
    progress: Callable[[int], None] = lambda num: None,
) -> Soak:  # fmt: skip
    """Run it. Raises what building an engine raises."""
    draw = random.Random(seed)
    plain = build_engine(engine_config(model, kernels, speculate=0, prefix_caching=False), lambda line: None)
    subjects = [Subject(prompt, sampling, alone(plain, prompt, sampling)) for prompt, sampling in draw_subjects(draw)]
    plain.close()
    config = engine_config(
        model, kernels, speculate=4, max_batch_size=12, max_batch_tokens=48, max_queue=max_open,
        kv_memory_bytes=48 * 8 * TOKEN_BYTES,
    )  # fmt: skip
    parts = build_engine(config, lambda line: None)
    assert parts.core.speculator is not None
    parts.core.speculator.cost = FreeRows()
    before = parts.memory.pool.stats().live_bytes
    traffic, began = Traffic(parts, subjects, draw), time.perf_counter()
    num_sent = 0
    while num_sent < num_requests or traffic.num_open:
        while num_sent < num_requests and traffic.num_open < max_open and draw.random() < 0.6:
            traffic.send(f"r{num_sent}")
            num_sent += 1
            progress(num_sent)
        if traffic.num_open and draw.random() < 0.03:
            traffic.cancel_somebody()
        traffic.step()
    result = Soak(parts.core.stats(), time.perf_counter() - began, traffic.endings, traffic.num_tokens, traffic.faults)
    result.faults += [f"at the end: {line}" for line in _leftovers(parts, before)]
    if sum(traffic.endings.values()) != num_requests:
        result.faults.append(f"{num_requests} requests, but {sum(traffic.endings.values())} endings")
    parts.close()
    if live := parts.memory.pool.stats().live_bytes:
        result.faults.append(f"a closed engine holds {live} bytes")
    return result


def _leftovers(parts: EngineParts, live_before: int) -> Iterator[str]:
    stats = parts.core.stats()
    if (stats.num_running, stats.num_waiting) != (0, 0) or parts.core.has_work:
        yield f"{stats.num_running} requests run and {stats.num_waiting} wait"
    if stats.num_free_blocks != stats.num_kv_blocks:
        yield f"{stats.num_kv_blocks - stats.num_free_blocks} KV blocks are held"
    if (live := parts.memory.pool.stats().live_bytes) != live_before:
        yield f"the pool holds {live - live_before} bytes more than before"


def report(result: Soak) -> None:
    stats, process = result.stats, psutil.Process()
    query, drafted = max(1, stats.prefix_query_tokens), max(1, stats.drafted_tokens)
    for name, value in (
        ("requests", f"{sum(result.endings.values())}"),
        ("ended by", ", ".join(f"{reason} {num}" for reason, num in result.endings.most_common())),
        ("tokens", f"{result.num_tokens} in {stats.steps} steps, {result.seconds:.0f} s"),
        ("batch", f"{stats.batch_size_sum / max(1, stats.steps):.1f} requests per step"),
        ("put back", f"{stats.num_preemptions} times for lack of KV blocks"),
        (
            "prefix cache",
            f"{stats.prefix_hit_tokens} of {query} tokens ({100 * stats.prefix_hit_tokens / query:.0f} %)",
        ),
        ("guesses", f"{stats.accepted_tokens} of {drafted} right ({100 * stats.accepted_tokens / drafted:.0f} %)"),
        ("resident", f"{process.memory_info().rss / 2**20:.0f} MiB"),
        ("faults", f"{len(result.faults)}"),
    ):
        print(f"{name:14}{value}")
    for fault in result.faults[:20]:
        print(f"  {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", choices=("native", "numpy"), default="native")
    wishes = parser.parse_args()

    def progress(num: int) -> None:
        if num % 1000 == 0 and sys.stderr.isatty():
            print(f"\r{num} requests", end="", file=sys.stderr, flush=True)

    logging.getLogger("aie.engine").setLevel(logging.ERROR)  # requests are put back all the time
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_llama(Path(folder) / "tiny", vocab=VOCAB)
        result = soak(model, wishes.requests, seed=wishes.seed, kernels=wishes.kernels, progress=progress)
    report(result)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
