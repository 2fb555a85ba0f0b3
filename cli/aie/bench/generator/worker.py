"""A process of the load generator: takes a plan, says that it is ready, sends on the word, and reports in batches.

    to it       plan (run, Plan) · go (run, start_s) · stop (run, hang_up) · abort (run)
    from it     hello (clock) · ready (run) · news (run, started, first text, done, events) · end (run, end_s, cpu_s)
                · fault (text)

It ends when the other end of its socket is closed, by whatever it may be.
"""

import asyncio
import os
import resource
import signal
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Any

from aie.bench.generator.channel import Frames, frame
from aie.bench.generator.loops import Sending
from aie.bench.generator.outcome import Outcome, values_of
from aie.bench.generator.pacing import new_event_loop, without_collections
from aie.bench.generator.plan import Plan

__all__ = ["main"]

_NEWS_EVERY_S = 0.1


class Worker(asyncio.Protocol):
    """The process's end of the socket. One run at a time; a run that was aborted may still be ending."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._runs: dict[int, _Run] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self.tell("hello", time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)  # nobody is left to be told anything

    def data_received(self, data: bytes) -> None:
        for kind, number, *rest in self._frames.feed(data):
            if kind == "plan":
                run = self._runs[number] = _Run(number, rest[0], self)
                run.task.add_done_callback(partial(self._ended, number))
            elif (known := self._runs.get(number)) is not None:
                known.hear(kind, *rest)

    def tell(self, kind: str, *rest: Any) -> None:
        """The fleet."""
        assert self._transport is not None
        self._transport.write(frame((kind, *rest)))

    def fault(self, context: dict[str, Any]) -> None:
        """What the event loop complains of. In a callback it is a bug of ours, and whoever waits for what should have
        been called would wait for ever."""
        if "handle" in context:
            error = context.get("exception")
            self.tell("fault", f"{type(error).__name__}: {error}")

    def _ended(self, number: int, task: "asyncio.Task[None]") -> None:
        del self._runs[number]
        if (error := task.exception()) is not None:
            self.tell("fault", f"{type(error).__name__}: {error}")


class _Run:
    """One plan."""

    def __init__(self, number: int, plan: Plan, worker: Worker) -> None:
        self._number, self._worker = number, worker
        self._sending = Sending(plan, self._on_start, self._on_done)
        self._go: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._open: dict[int, tuple[int, Outcome]] = {}  # by the identity of the outcome
        self._num_started = 0
        self._without_text: dict[int, Outcome] = {}  # of the open ones, by their numbers
        self._started: list[tuple[int, tuple[Any, ...]]] = []
        self._done: list[tuple[int, tuple[Any, ...]]] = []
        self.task = asyncio.create_task(self._run())

    def hear(self, kind: str, *rest: Any) -> None:
        if kind == "go" and not self._go.done():
            self._go.set_result(rest[0])
        elif kind == "stop":
            self._sending.stop(hang_up=rest[0])
        elif kind == "abort":
            self.task.cancel()

    async def _run(self) -> None:
        start_cpu_s = time.process_time()
        with without_collections(), suppress(asyncio.CancelledError):  # called off: what has ended is told all the same
            await self._sending.prepare()
            self._worker.tell("ready", self._number)
            start_s = await self._go
            telling = asyncio.create_task(self._keep_telling())
            start_cpu_s = time.process_time()
            try:
                await self._sending.run(start_s)
            finally:
                telling.cancel()
        end_s, cpu_s = time.perf_counter(), time.process_time() - start_cpu_s
        self._tell()
        self._worker.tell("end", self._number, end_s, cpu_s)

    def _on_start(self, outcome: Outcome) -> None:
        self._open[id(outcome)] = (self._num_started, outcome)
        self._started.append((self._num_started, values_of(outcome)))
        self._without_text[self._num_started] = outcome
        self._num_started += 1

    def _on_done(self, outcome: Outcome) -> None:
        number, _ = self._open.pop(id(outcome))
        self._without_text.pop(number, None)
        self._done.append((number, values_of(outcome)))

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(_NEWS_EVERY_S)
            self._tell()

    def _tell(self) -> None:
        events = sum(1 + len(one.gaps_s) for _, one in self._open.values() if one.first_token_s is not None)
        started, self._started = self._started, []
        done, self._done = self._done, []
        first = [(number, one.first_token_s) for number, one in self._without_text.items() if one.first_token_s]
        for number, _ in first:
            del self._without_text[number]
        self._worker.tell("news", self._number, started, first, done, events)


def main(descriptor: int) -> None:
    """Serves the socket of that number until it is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # who was asked to end is the parent, who ends us
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a socket for each request that is under way
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    link = socket.socket(fileno=descriptor)
    _, worker = loop.run_until_complete(loop.create_connection(Worker, sock=link))
    loop.set_exception_handler(lambda _loop, context: worker.fault(context))
    loop.run_forever()
