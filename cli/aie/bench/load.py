"""Sending planned requests: in the closed loop, where every client waits for its answer, or in the open loop, where
requests go out when they are due, whatever became of those before."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aie.bench.client import Endpoint, Outcome, send_streaming
from aie.bench.server_side import ServerWatch, ServerWindow
from aie.bench.workload import PlannedRequest

__all__ = ["LevelResult", "OnDone", "Sampler", "as_row", "run_level", "run_open"]

_SAMPLE_EVERY_S = 0.25

OnDone = Callable[[Outcome], None]


@dataclass(slots=True)
class LevelResult:
    """One level before it is summed up."""

    concurrency: int  # clients; in the open loop, the most requests that were in flight at once
    outcomes: list[Outcome]
    wall_s: float
    peak_rss_bytes: int | None = None
    mean_batch: float | None = None
    offered_per_s: float | None = None  # of the open loop
    client_cpu: float | None = None  # of one core, used by this process meanwhile
    start_s: float = 0.0
    server: ServerWindow | None = None
    max_in_flight: int | None = None  # of the open loop: why requests may have been sent late


@dataclass(slots=True)
class Sampler:
    """Watches the server while a level runs: memory through `read_rss`, and what its /metrics say of `model`."""

    endpoint: Endpoint
    model: str | None  # None: its metrics are not looked at
    read_rss: Callable[[], int | None]
    peak_rss_bytes: int | None = field(default=None)
    server: ServerWatch | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.model is not None:
            self.server = ServerWatch(self.endpoint, self.model)

    async def look(self) -> None:
        """At the metrics, if there are any."""
        if self.server is not None and not await self.server.look() and not self.server.is_offered:
            self.server = None

    async def watch(self) -> None:
        """Runs until cancelled."""
        watching = None if self.server is None else asyncio.create_task(self.server.watch())
        try:
            while True:
                rss = self.read_rss()
                if rss is not None:
                    self.peak_rss_bytes = max(rss, self.peak_rss_bytes or 0)
                await asyncio.sleep(_SAMPLE_EVERY_S)
        finally:
            if watching is not None:
                watching.cancel()

    def add_to(self, result: LevelResult) -> None:
        """What was seen."""
        result.server = None if self.server is None else self.server.window()
        result.peak_rss_bytes = self.peak_rss_bytes
        if result.server is not None:
            result.mean_batch = result.server.mean_batch
            if result.peak_rss_bytes is None and result.server.memory_bytes_max is not None:
                result.peak_rss_bytes = int(result.server.memory_bytes_max)


@dataclass(slots=True)
class _Line:
    """How requests of one level are sent, and what became of them."""

    endpoint: Endpoint
    model: str
    chat: bool
    timeout_s: float
    on_done: OnDone
    on_start: OnDone
    think_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)

    async def send(self, request: PlannedRequest, due_s: float | None = None, until_s: float = math.inf) -> None:
        """One request; or a conversation, whose next turn comes after the answer and a pause, and holds all that was
        said. It ends where a turn is not answered, and begins no turn from `until_s` on."""
        said: list[dict[str, str]] = []
        for turn, one in enumerate((request, *request.later)):
            if turn:
                await asyncio.sleep(self.think_s)
                if time.perf_counter() >= until_s:
                    return
            said.append({"role": "user", "content": one.prompt})
            outcome = Outcome(turn=turn, session=request.session, pieces=[] if request.later else None)
            await self._one(one, said, outcome, None if turn else due_s)
            if outcome.error is not None:
                return
            said.append({"role": "assistant", "content": "".join(outcome.pieces or ())})
            outcome.pieces = None

    async def _one(
        self, request: PlannedRequest, said: list[dict[str, str]], outcome: Outcome, due_s: float | None
    ) -> None:
        asked: object = said if self.chat else request.prompt
        body: dict[str, object] = {
            "model": self.model, "messages" if self.chat else "prompt": asked, "max_tokens": request.max_tokens,
            "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        self.on_start(outcome)
        await send_streaming(
            self.endpoint, path, body, timeout_s=self.timeout_s, hang_up_after=request.hang_up_after, due_s=due_s,
            into=outcome,
        )  # fmt: skip
        self.outcomes.append(outcome)
        self.on_done(outcome)


def _no_news(_outcome: Outcome) -> None: ...


async def run_level(
    endpoint: Endpoint,
    model: str,
    planned: Sequence[PlannedRequest],
    concurrency: int,
    *,
    sampler: Sampler,
    timeout_s: float,
    duration_s: float | None = None,
    on_done: OnDone = _no_news,
    on_start: OnDone = _no_news,
    chat: bool = False,
    think_s: float = 0.0,
) -> LevelResult:
    """Sends all of `planned`, at most `concurrency` at once, and stops starting new ones after `duration_s`.

    chat: each prompt as a message of a user to /v1/chat/completions, instead of to /v1/completions as it is."""
    line = _Line(endpoint, model, chat, timeout_s, on_done, on_start, think_s)
    waiting = iter(planned)

    async def client(start_s: float) -> None:
        until_s = math.inf if duration_s is None else start_s + duration_s
        for request in waiting:
            if time.perf_counter() >= until_s:
                break
            await line.send(request, until_s=until_s)

    async def clients(start_s: float) -> int:
        await asyncio.gather(*(client(start_s) for _ in range(concurrency)))
        return concurrency

    return await _measured(line, sampler, clients)


async def run_open(
    endpoint: Endpoint,
    model: str,
    planned: Sequence[PlannedRequest],
    due: Sequence[float],
    *,
    sampler: Sampler,
    timeout_s: float,
    max_in_flight: int | None = None,
    on_done: OnDone = _no_news,
    on_start: OnDone = _no_news,
    chat: bool = False,
) -> LevelResult:
    """Sends planned[i] due[i] seconds after the start; where `max_in_flight` are under way it waits for one of them to
    end, and that wait counts in every latency from schedule."""
    line = _Line(endpoint, model, chat, timeout_s, on_done, on_start)
    cap = None if max_in_flight is None else asyncio.Semaphore(max_in_flight)
    in_flight = most = 0

    async def one(request: PlannedRequest, due_s: float) -> None:
        nonlocal in_flight, most
        if cap is not None:
            await cap.acquire()
        in_flight += 1
        most = max(most, in_flight)
        try:
            await line.send(request, due_s)
        finally:
            in_flight -= 1
            if cap is not None:
                cap.release()

    async def schedule(start_s: float) -> int:
        async with asyncio.TaskGroup() as tasks:
            for request, offset in zip(planned, due, strict=True):
                while (left_s := start_s + offset - time.perf_counter()) > 0:
                    await asyncio.sleep(left_s)
                tasks.create_task(one(request, start_s + offset))
        return most

    return await _measured(line, sampler, schedule)


async def _measured(line: _Line, sampler: Sampler, run: Callable[[float], Awaitable[int]]) -> LevelResult:
    await sampler.look()
    watcher = asyncio.create_task(sampler.watch())
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    try:
        concurrency = await run(start_s)
        wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    finally:
        watcher.cancel()
    await sampler.look()
    result = LevelResult(concurrency, line.outcomes, wall_s, start_s=start_s)
    result.client_cpu = cpu_s / wall_s if wall_s > 0 else None
    sampler.add_to(result)
    return result


def as_row(outcome: Outcome, result: LevelResult) -> dict[str, object]:
    """One request as it was, for a reader who wants to compute for himself."""

    def since_start(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - result.start_s, 6)

    return {
        **({} if outcome.session is None else {"session": outcome.session, "turn": outcome.turn}),
        "end": outcome.kind,
        "error": outcome.error,
        "status": outcome.status,
        "due_s": since_start(outcome.due_s),
        "sent_s": since_start(outcome.sent_s),
        "first_byte_s": since_start(outcome.first_byte_s),
        "first_token_s": since_start(outcome.first_token_s),
        "end_s": since_start(outcome.end_s),
        "gaps_s": [round(gap, 6) for gap in outcome.gaps_s],
        "prompt_tokens": outcome.num_prompt_tokens,
        "output_tokens": outcome.num_output_tokens,
    }
