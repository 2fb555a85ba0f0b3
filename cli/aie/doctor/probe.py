"""The request with which a server is asked how it can be asked: of one that was just started it is the first."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aie.bench.workload import tokens_to_words, words
from aie.doctor.asking import Answer
from aie.doctor.processes import Process

__all__ = ["FIRST_ANSWER", "FIRST_TOKENS", "FIRST_WORDS", "Probe", "text_of"]

FIRST_TOKENS, FIRST_ANSWER = 48, 8  # of prompt and answer
FIRST_WORDS = 30  # for a model that answers at once


@dataclass(frozen=True, slots=True)
class Probe:
    """A request, and the pages that the server's processes touched first, or got from disk, meanwhile."""

    answer: Answer
    minor_faults: int | None = None
    major_faults: int | None = None

    @classmethod
    async def of(cls, process: Process | None, ask: Callable[[], Awaitable[Answer]]) -> "Probe":
        """Asks."""
        before = None if process is None else process.faults()
        answer = await ask()
        after = None if process is None else process.faults()
        if before is None or after is None:
            return cls(answer)
        return cls(answer, max(0, after[0] - before[0]), max(0, after[1] - before[1]))


def text_of(tokens: int, number: int) -> str:
    """About so many tokens of common words; another text for each number, the same in every run."""
    return words(tokens_to_words(tokens), random.Random(f"{tokens}/{number}"))
