"""One level of a load test: planned requests as a plan of the load generator, and what is seen of the server
meanwhile."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from aie.bench.arrivals import Step
from aie.bench.energy import Energy, EnergyMeter
from aie.bench.fleet import Fleet
from aie.bench.generator import Call, Closed, Conversation, Endpoint, Open, Outcome, Plan, Turn
from aie.bench.server_side import ServerWatch, ServerWindow
from aie.bench.workload import PlannedRequest

__all__ = ["LevelResult", "OnDone", "Sampler", "as_row", "calls_of", "run_level", "run_open", "run_plan"]

_CHAT = "/v1/chat/completions"
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
    client_cpu: float | None = None  # of one core, used meanwhile by the busiest process of the load generator
    generator_cpu: tuple[float, ...] = ()  # of one core, by each of them
    start_s: float = 0.0
    server: ServerWindow | None = None
    max_in_flight: int | None = None  # of the open loop: why requests may have been sent late
    energy: Energy | None = None
    servers: Mapping[str, ServerWindow] = field(default_factory=dict)  # of a mix: what was counted of each part's model
    stopped: str | None = None  # why it was ended before its time
    unsent: int = 0  # of one that was: requests that were due and had not been sent, for the cap
    rate: str | None = None  # of the open loop, where it is not the same all the time
    steps: Sequence[Step] = ()  # and its parts


@dataclass(slots=True)
class Sampler:
    """Watches the server while a level runs: memory through `read_rss`, what its /metrics say of `model`, and what the
    machine says of energy."""

    endpoint: Endpoint  # of the metrics
    model: str | None  # None: its metrics are not looked at
    read_rss: Callable[[], int | None]
    peak_rss_bytes: int | None = field(default=None)
    energy: EnergyMeter = field(default_factory=EnergyMeter)
    part_models: Mapping[str, str] = field(default_factory=dict)  # of a mix: instead of `model`
    server: ServerWatch | None = field(default=None, init=False)
    parts: dict[str, ServerWatch] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.part_models:
            self.parts = {label: ServerWatch(self.endpoint, model) for label, model in self.part_models.items()}
        elif self.model is not None:
            self.server = ServerWatch(self.endpoint, self.model)

    async def look(self) -> None:
        """At the metrics, if there are any."""
        self.energy.look()  # first, since it counts on while the server answers
        if self.server is not None and not await self.server.look() and not self.server.is_offered:
            self.server = None
        for label, watch in list(self.parts.items()):
            if not await watch.look() and not watch.is_offered:
                del self.parts[label]

    async def watch(self) -> None:
        """Runs until cancelled."""
        watches = [*self.parts.values(), *([] if self.server is None else [self.server])]
        watching = [asyncio.create_task(watch.watch()) for watch in watches]
        self.energy.begin()
        try:
            while True:
                rss = self.read_rss()
                if rss is not None:
                    self.peak_rss_bytes = max(rss, self.peak_rss_bytes or 0)
                await asyncio.sleep(_SAMPLE_EVERY_S)
                self.energy.look()
        finally:
            for task in watching:
                task.cancel()

    def add_to(self, result: LevelResult) -> None:
        """What was seen."""
        result.energy = self.energy.energy
        result.servers = {
            label: window for label, watch in self.parts.items() if (window := watch.window()) is not None
        }
        result.server = None if self.server is None else self.server.window()
        result.peak_rss_bytes = self.peak_rss_bytes
        if result.server is not None:
            result.mean_batch = result.server.mean_batch
            if result.peak_rss_bytes is None and result.server.memory_bytes_max is not None:
                result.peak_rss_bytes = int(result.server.memory_bytes_max)


def calls_of(
    planned: Sequence[PlannedRequest | Call], model: str, *, chat: bool, think_s: float = 0.0, part: str = ""
) -> list[Call | Conversation]:
    """Requests as they go over the wire. chat: each prompt as a message of a user to /v1/chat/completions, instead of
    to /v1/completions as it is. think_s: between an answer and the next turn of its conversation. What is a call
    already stays as it is."""
    calls: list[Call | Conversation] = []
    for one in planned:
        if isinstance(one, Call):
            calls.append(one)
        elif one.later:
            calls.append(_conversation(one, model, think_s, part))
        else:
            calls.append(_call(one, model, chat=chat, part=part))
    return calls


def _body(model: str, name: str, asked: object, max_tokens: int) -> dict[str, object]:
    return {"model": model, name: asked, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip


def _call(one: PlannedRequest, model: str, *, chat: bool, part: str) -> Call:
    name, asked = ("messages", [_message(one)]) if chat else ("prompt", one.prompt)
    body = json.dumps(_body(model, name, asked, one.max_tokens)).encode()
    return Call(_CHAT if chat else "/v1/completions", body, part=part, hang_up_after=one.hang_up_after,
                session=one.session)  # fmt: skip


def _conversation(first: PlannedRequest, model: str, think_s: float, part: str) -> Conversation:
    turns = []
    for number, one in enumerate((first, *first.later)):
        whole = json.dumps(_body(model, "messages", None, one.max_tokens))
        before, name, after = whole.partition('"messages": ')
        message = json.dumps(_message(one)).encode()
        wait_s = think_s if number else 0.0
        rest = after.removeprefix("null").encode()
        turns.append(Turn((before + name).encode(), message, rest, wait_s, one.hang_up_after))
    return Conversation(_CHAT, tuple(turns), str(first.session), part=part)


def _message(one: PlannedRequest) -> dict[str, str]:
    return {"role": "user", "content": one.prompt}


async def run_plan(
    plan: Plan,
    *,
    sampler: Sampler,
    fleet: Fleet | None = None,
    on_done: OnDone | None = None,
    on_start: OnDone | None = None,
    on_first: OnDone | None = None,
    on_flow: Callable[[int], None] | None = None,
    on_begin: Callable[[float], None] | None = None,
) -> LevelResult:
    """Sends a plan, and looks at the server before, meanwhile and afterwards. fleet: who sends; None: a process that is
    started for it. on_flow: told how many events with text the open requests have."""
    with ExitStack() as stack:
        sender = stack.enter_context(Fleet()) if fleet is None else fleet
        await sampler.look()
        watcher = asyncio.create_task(sampler.watch())
        try:
            ran = await sender.run(
                plan, on_start=on_start, on_first=on_first, on_done=on_done, on_flow=on_flow, on_begin=on_begin
            )
        finally:
            watcher.cancel()
    await sampler.look()
    clients = ran.most_in_flight if isinstance(plan.loop, Open) else plan.loop.clients
    result = LevelResult(clients, ran.outcomes, ran.wall_s, start_s=ran.start_s)
    result.generator_cpu = ran.cpu
    result.client_cpu = max(ran.cpu, default=None)
    sampler.add_to(result)
    return result


async def run_level(
    endpoint: Endpoint,
    model: str,
    planned: Sequence[PlannedRequest | Call],
    concurrency: int,
    *,
    sampler: Sampler,
    timeout_s: float,
    duration_s: float | None = None,
    on_done: OnDone | None = None,
    on_start: OnDone | None = None,
    on_first: OnDone | None = None,
    on_flow: Callable[[int], None] | None = None,
    chat: bool = False,
    think_s: float = 0.0,
    fleet: Fleet | None = None,
) -> LevelResult:
    """The closed loop: sends all of `planned`, at most `concurrency` at once, and begins none after `duration_s`."""
    calls = calls_of(planned, model, chat=chat, think_s=think_s)
    plan = Plan(endpoint, calls, Closed(concurrency, duration_s), timeout_s)
    return await run_plan(plan, sampler=sampler, fleet=fleet, on_done=on_done, on_start=on_start, on_flow=on_flow)


async def run_open(
    endpoint: Endpoint,
    model: str,
    planned: Sequence[PlannedRequest | Call],
    due: Sequence[float],
    *,
    sampler: Sampler,
    timeout_s: float,
    max_in_flight: int | None = None,
    on_done: OnDone | None = None,
    on_start: OnDone | None = None,
    on_first: OnDone | None = None,
    on_flow: Callable[[int], None] | None = None,
    chat: bool = False,
    think_s: float = 0.0,
    fleet: Fleet | None = None,
) -> LevelResult:
    """The open loop: sends planned[i] due[i] seconds after the start; where `max_in_flight` are under way it waits for
    one of them to end, and that wait counts in every latency from schedule."""
    calls = calls_of(planned, model, chat=chat, think_s=think_s)
    plan = Plan(endpoint, calls, Open(due, max_in_flight), timeout_s)
    return await run_plan(plan, sampler=sampler, fleet=fleet, on_done=on_done, on_start=on_start, on_flow=on_flow)


def as_row(outcome: Outcome, result: LevelResult) -> dict[str, object]:
    """One request as it was, for a reader who wants to compute for himself."""

    def since_start(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - result.start_s, 6)

    return {
        **({} if outcome.session is None else {"session": outcome.session, "turn": outcome.turn}),
        **({"part": outcome.part} if outcome.part else {}),
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
        "bytes": outcome.num_bytes,
    }
