"""The closed loop against models that answer at once: connections that stay open, answers in one piece.

A small model answers in less time than opening a connection takes, so every client keeps its own. It opens another one
where the server closes it, and after every error.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice

from aie.bench.client import TOO_LATE, Endpoint, Outcome, connect, describe_error, http_error, read_head, read_whole
from aie.bench.counters import Window, read_counters, window
from aie.bench.load import Sampler
from aie.bench.questions import Question

__all__ = ["AtOnceResult", "run_at_once"]


@dataclass(slots=True)
class AtOnceResult:
    """One row of the table before it is summed up."""

    concurrency: int
    outcomes: list[Outcome]
    wall_s: float
    peak_rss_bytes: int | None = None
    client_cpu: float = 0.0  # of one core, used by this process while it measured
    window: Window = field(default_factory=Window)


async def run_at_once(
    endpoint: Endpoint,
    model: str,
    questions: Sequence[Question],
    concurrency: int,
    *,
    count: int,
    duration_s: float | None,
    timeout_s: float,
    sampler: Sampler,
    on_done: Callable[[Outcome], None] = lambda _outcome: None,
    on_start: Callable[[Outcome], None] = lambda _outcome: None,
) -> AtOnceResult:
    """`count` requests, the questions in turn, and none begun after `duration_s`."""
    requests = [(_request(endpoint, question)) for question in questions]
    waiting = islice(cycle(requests), count)
    outcomes: list[Outcome] = []
    before = await read_counters(endpoint, model)
    watcher = asyncio.create_task(sampler.watch())
    start_s, start_cpu_s = time.perf_counter(), time.process_time()

    async def client() -> None:
        line = _Line(endpoint)
        try:
            for request in waiting:
                if duration_s is not None and time.perf_counter() - start_s >= duration_s:
                    break
                outcome = Outcome()
                on_start(outcome)
                await line.ask(request, timeout_s, outcome)
                outcomes.append(outcome)
                on_done(outcome)
        finally:
            line.close()

    try:
        await asyncio.gather(*(client() for _ in range(concurrency)))
        wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    finally:
        watcher.cancel()
    after = await read_counters(endpoint, model)
    peak = sampler.peak_rss_bytes
    if peak is None and after is not None and after.front_rss_bytes > 0:
        peak = int(after.front_rss_bytes)
    return AtOnceResult(concurrency, outcomes, wall_s, peak, cpu_s / wall_s, window(before, after))


class _Line:
    """One client's connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes, timeout_s: float, outcome: Outcome) -> None:
        """Never raises for what a server does: it goes into `outcome.error`."""
        outcome.sent_s = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                await self._exchange(request, outcome)
        except TimeoutError:
            outcome.error = f"{TOO_LATE} {timeout_s:g} s"
            self.close()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            outcome.error = describe_error(error, is_begun=outcome.status != 0)
            self.close()
        outcome.end_s = time.perf_counter()

    def close(self) -> None:
        if self._streams is not None:
            with suppress(OSError, RuntimeError):
                self._streams[1].close()
            self._streams = None

    async def _exchange(self, request: bytes, outcome: Outcome) -> None:
        if self._streams is None:
            self._streams = await connect(self._endpoint)
        reader, writer = self._streams
        writer.write(request)
        outcome.status, headers = await read_head(reader)
        body = await read_whole(reader, headers)
        if outcome.status != 200:
            outcome.error = http_error(outcome.status, body)
        elif not body:
            outcome.error = "the answer is empty"
        has_end = "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()
        if not has_end or headers.get("connection", "").lower() == "close":
            self.close()


def _request(endpoint: Endpoint, question: Question) -> bytes:
    lines = [f"POST {endpoint.base_path}{question.path} HTTP/1.1", f"Host: {endpoint.authority}",
             "User-Agent: aie-bench", *question.headers, f"Content-Length: {len(question.body)}"]  # fmt: skip
    if endpoint.api_key:
        lines.append(f"Authorization: Bearer {endpoint.api_key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + question.body
