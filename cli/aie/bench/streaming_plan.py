"""What a load test of a model that generates text sends, decided before the clock starts: requests, level by level, and
in the open loop when each is due."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from aie.bench.arrivals import ArrivalKind, Arrivals, Rate, Step
from aie.bench.by_step import parts_of
from aie.bench.generator import Call
from aie.bench.lengths_file import Pairs
from aie.bench.workload import Cancel, PlannedRequest, plan_requests, plan_sessions

__all__ = ["Level", "Requests", "Traffic", "closed_levels", "open_level"]

_OPEN_S = 30.0  # how long an open level lasts, unless told


class Requests(Protocol):
    """What is sent, however it is made."""

    @property
    def seed(self) -> int: ...

    def requests(self, count: int, number: int) -> Sequence[PlannedRequest | Call]:
        """`count` of them. number: of the level, so that no two send the same."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What requests look like that ask for text."""

    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    shape: str = "uniform"
    shared_prefix: int = 0
    cancel: Cancel | None = None
    seed: int = 0
    chat: bool = False
    timeout_s: float = 300.0
    pairs: Pairs = ()  # lengths of input and output to draw from, instead of the bounds
    turns: int = 1  # of a conversation
    think_s: float = 0.0  # between an answer and the next turn

    def requests(self, count: int, number: int) -> list[PlannedRequest]:
        """`count` of them, as beginnings of conversations where these have several turns. number: of the level, so
        that no two send the same prompts."""
        planned = plan_requests(
            count,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            seed=self.seed * 7919 + number,
            shape=self.shape,
            shared_prefix=self.shared_prefix,
            cancel=self.cancel,
            pairs=self.pairs,
        )
        return planned if self.turns == 1 else plan_sessions(planned, self.turns, f"bench-{self.seed}-{number}")


@dataclass(frozen=True, slots=True)
class Level:
    """One row of the table to be. clients: of the closed loop; rate, and due [s] from the start: of the open one."""

    requests: Sequence[PlannedRequest | Call]
    clients: int = 0
    duration_s: float | None = None  # closed: no request is begun later
    rate: Rate | None = None
    due: Sequence[float] = ()
    max_in_flight: int | None = None
    until_s: float | None = None  # open: how long requests come
    by_clock: bool = False  # closed: there are more requests than will be sent

    @property
    def num_requests(self) -> int | None:
        """With all turns of conversations; None where the clock decides."""
        if self.by_clock:
            return None
        return sum(1 if isinstance(one, Call) else 1 + len(one.later) for one in self.requests)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Parts of the open loop in which its rate differs."""
        return () if self.rate is None or self.until_s is None else parts_of(self.rate, self.until_s)

    @property
    def rate_label(self) -> str | None:
        """Of one that changes."""
        if not self.steps or self.rate is None:
            return None
        return str(self.rate) if self.rate.steps else f"{self.rate}/s"

    @property
    def label(self) -> str:
        """For a line of progress."""
        if self.rate is not None:
            return f"{self.rate} requests/s" if not self.rate.steps else f"rate {self.rate}"
        return f"{self.clients} client{'s' if self.clients > 1 else ''}"


def closed_levels(
    traffic: Traffic, clients: Sequence[int], *, requests: int | None, duration_s: float | None
) -> list[Level]:
    """Without a duration four requests (or conversations) for each client, and at least eight."""
    levels = []
    for number in clients:
        # With a duration alone the clock decides; the plan only has to be long enough not to run dry.
        count = requests or traffic.turns * (max(8, 4 * number) if duration_s is None else max(64, 64 * number))
        levels.append(Level(traffic.requests(count, number), number, duration_s))
    return levels


def open_level(
    traffic: Requests,
    rate: Rate,
    *,
    kind: ArrivalKind,
    burstiness: float,
    requests: int | None,
    duration_s: float | None,
    max_in_flight: int | None,
) -> Level:
    """Arrivals for `duration_s`; without one, until there are `requests`, or for half a minute; or for as long as the
    steps of the rate say. A ramp takes as long as `requests` do on average, and so has a few more or fewer. What
    arrives are conversations where these have several turns, and `requests` counts their turns."""
    turns = traffic.turns if isinstance(traffic, Traffic) else 1
    requests = None if requests is None else ceil(requests / turns)
    until_s = rate.seconds or duration_s or (_OPEN_S if requests is None else requests / rate.mean)
    number = round(1000 * rate.mean)
    arrivals = Arrivals(rate, kind, burstiness)
    due = arrivals.schedule(until_s, traffic.seed * 7919 + number)
    while requests is not None and duration_s is None and len(due) < requests and rate.first == rate.last:
        until_s *= 2  # the same arrivals and more
        due = arrivals.schedule(until_s, traffic.seed * 7919 + number)
    due = due if requests is None else due[:requests]
    return Level(traffic.requests(turns * len(due), number), 0, None, rate, due, max_in_flight, until_s)
