"""What is to be sent, and when: made before the clock starts, and pickled to the processes that send it.

A plan is bytes already: no process makes a body while it measures, but for conversations, whose next turn holds the
answers to those before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aie.bench.generator.endpoint import Endpoint

__all__ = ["JSON", "Answer", "Call", "Closed", "Conversation", "Open", "Plan", "Turn", "shares"]

Answer = Literal["stream", "whole"]
"""Server-sent events as OpenAI's API has them, up to [DONE]; or a body in one piece."""

JSON = ("Content-Type: application/json",)


@dataclass(frozen=True, slots=True)
class Call:
    """One request. part: of a mix, as it is to be reported."""

    path: str  # below the endpoint's base path
    body: bytes | None = None  # None: without one, as a GET
    method: str = "POST"
    headers: tuple[str, ...] = JSON  # besides Host, User-Agent, Content-Length, Connection and Authorization
    answer: Answer = "stream"
    part: str = ""
    hang_up_after: int | None = None  # events with text; 0: when all has been sent
    keep_alive: bool = False  # False: a new connection, closed after the answer
    reads_usage: bool = False  # whole: token counts stand in the `usage` of a JSON body
    may_be_empty: bool = False  # whole: an answer without a body is one, too
    session: str | None = None  # sent as x-session-id


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation; its body is `before`, the list of all messages so far, `after`."""

    before: bytes
    message: bytes  # a JSON object
    after: bytes
    wait_s: float = 0.0  # after the answer before it
    hang_up_after: int | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns one after another; it ends where one is not answered."""

    path: str
    turns: tuple[Turn, ...]
    session: str  # sent as x-session-id
    headers: tuple[str, ...] = JSON
    part: str = ""
    keep_alive: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients, each of which sends its next when it has its answer; none is begun after `duration_s`."""

    clients: int
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """calls[i] goes out due[i] seconds after the start, whatever became of others; where `max_in_flight` are under way
    it waits, and the wait counts in its latency from schedule. Later turns of a conversation are due when the answer
    before them and their pause are over; after `duration_s` none of them is begun."""

    due: Sequence[float]
    max_in_flight: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One level. calls: in the order in which they are begun; the same object may stand there many times."""

    endpoint: Endpoint
    calls: Sequence[Call | Conversation]
    loop: Closed | Open
    timeout_s: float


def shares(plan: Plan, processes: int) -> list[Plan]:
    """The plan dealt out: at most so many parts, which together have its clients, its cap and its schedule exactly."""
    if isinstance(plan.loop, Closed):
        count = min(processes, plan.loop.clients)
        clients = [len(range(part, plan.loop.clients, count)) for part in range(count)]
        # Call i goes to client i mod all, so that each process has as many calls as befits its clients.
        calls: list[list[Call | Conversation]] = [[] for _ in range(count)]
        for index, call in enumerate(plan.calls):
            calls[index % plan.loop.clients % count].append(call)
        return [
            replace(plan, calls=calls[part], loop=replace(plan.loop, clients=clients[part])) for part in range(count)
        ]
    cap = plan.loop.max_in_flight
    count = min(processes, len(plan.calls) or 1, cap or processes)
    return [
        replace(
            plan,
            calls=list(plan.calls[part::count]),
            loop=replace(
                plan.loop,
                due=list(plan.loop.due[part::count]),
                max_in_flight=None if cap is None else len(range(part, cap, count)),
            ),
        )
        for part in range(count)
    ]
