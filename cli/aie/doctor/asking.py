"""One request to the server that is looked at, and its answer. All that `aie doctor` knows of the load generator.

At most a few requests are under way at once, so they are sent from this process.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from aie.bench.client import Endpoint, Outcome, ask, describe_error, get_text, http_error, send_streaming
from aie.bench.generator import Call

__all__ = ["NETWORK_ERRORS", "NO_TEXT", "Answer", "Asker", "Kind", "get", "numbers_in"]

NO_TEXT = "the answer had no text"  # as the load generator says it
NETWORK_ERRORS = (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)

Kind = Literal["completions", "chat", "embeddings", "predict"]
"""How the server is asked; the last two answer at once."""

# Of an answer that comes as JSON: what says nothing of the model's numbers.
_NOT_NUMBERS = frozenset({"usage", "created", "id", "index", "object", "model", "took_ms", "timing"})


@dataclass(slots=True)
class Answer:
    """What became of one request. Times on `time.perf_counter`."""

    sent_s: float
    end_s: float = 0.0
    first_s: float | None = None  # first event with text
    last_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    text: str = ""
    num_tokens: int = 0
    num_prompt_tokens: int = 0  # as the server counts them; 0 where it does not
    numbers: tuple[float, ...] = ()  # of a model that answers at once
    status: int = 0
    error: str | None = None
    is_late: bool = False  # given up, since the time was over: nothing is said of it

    @property
    def took_s(self) -> float:
        return self.end_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends requests to one model of one server."""

    endpoint: Endpoint
    model: str
    kind: Kind
    seen: Callable[[Answer], None] = lambda _answer: None  # is told of every answer

    @property
    def generates(self) -> bool:
        return self.kind in ("completions", "chat")

    async def write(self, prompt: str, max_tokens: int, *, until_s: float) -> Answer:
        """A streamed answer of so many tokens; given up at `until_s`."""
        body: dict[str, object] = {
            "model": self.model, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        body |= {"messages": [{"role": "user", "content": prompt}]} if self.kind == "chat" else {"prompt": prompt}
        path = "/v1/chat/completions" if self.kind == "chat" else "/v1/completions"
        outcome = Outcome(pieces=[])
        left_s = max(0.01, until_s - time.perf_counter())
        await send_streaming(self.endpoint, path, body, timeout_s=left_s, into=outcome)
        return self._tell(_answer_of(outcome))

    async def compute(self, question: object, *, until_s: float) -> Answer:
        """Numbers for one input, or for several. question: a text, a list of texts, or a body for /predict."""
        if self.kind == "embeddings":
            return await self._whole("/v1/embeddings", {"model": self.model, "input": question}, until_s)
        return await self._whole(f"/predict/{self.model}", question, until_s)

    async def score(self, prompt: str, max_tokens: int, *, until_s: float) -> list[dict[str, float]]:
        """For each token of the greedy answer the likeliest tokens with their log-probabilities; empty where the server
        does not give them."""
        if self.kind != "completions":
            return []
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 2,
                "ignore_eos": True}  # fmt: skip
        try:
            async with asyncio.timeout(max(0.01, until_s - time.perf_counter())):
                status, answer = await _post(self.endpoint, "/v1/completions", body)
            found = json.loads(answer)["choices"][0]["logprobs"]["top_logprobs"] if status == 200 else []
            return [{str(token): float(value) for token, value in one.items()} for one in found]
        except (*NETWORK_ERRORS, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            return []

    async def _whole(self, path: str, body: object, until_s: float) -> Answer:
        answer = Answer(time.perf_counter())
        try:
            async with asyncio.timeout(max(0.01, until_s - time.perf_counter())):
                answer.status, data = await _post(self.endpoint, path, body)
            if answer.status != 200:
                answer.error = http_error(answer.status, data)
            else:
                answer.numbers = tuple(numbers_in(json.loads(data)))
        except TimeoutError:
            answer.is_late, answer.error = True, "no answer in the time there was"
        except (*NETWORK_ERRORS, RecursionError) as error:
            answer.error = describe_error(error, is_begun=answer.status != 0)
        answer.end_s = time.perf_counter()
        return self._tell(answer)

    def _tell(self, answer: Answer) -> Answer:
        self.seen(answer)
        return answer


async def get(endpoint: Endpoint, path: str, *, timeout_s: float = 3.0) -> str | None:
    """The body of what is there; None for all else."""
    try:
        status, text = await get_text(endpoint, path, timeout_s=timeout_s)
    except NETWORK_ERRORS:
        return None
    return text if status == 200 else None


def numbers_in(document: object) -> Iterator[float]:
    """All of them, in the order in which they stand, but for those that count and tell the time."""
    if isinstance(document, bool):
        return
    if isinstance(document, int | float):
        yield float(document)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key not in _NOT_NUMBERS:
                yield from numbers_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from numbers_in(value)


async def _post(endpoint: Endpoint, path: str, body: object) -> tuple[int, bytes]:
    return await ask(endpoint, Call(path, json.dumps(body).encode(), answer="whole"))


def _answer_of(outcome: Outcome) -> Answer:
    late = outcome.kind == "timed out"
    return Answer(
        sent_s=outcome.sent_s,
        end_s=outcome.end_s,
        first_s=outcome.first_token_s,
        last_s=outcome.last_token_s,
        gaps_s=outcome.gaps_s,
        text="".join(outcome.pieces or ()),
        num_tokens=outcome.num_output_tokens,
        num_prompt_tokens=outcome.num_prompt_tokens,
        status=outcome.status,
        error="no answer in the time there was" if late else outcome.error,
        is_late=late,
    )
