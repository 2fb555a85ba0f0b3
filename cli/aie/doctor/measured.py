"""What is measured of a server: plain numbers, made by the experiments and judged by pure functions.

Times in seconds, sizes in bytes. None stands for what this server, or this system, does not tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "Company",
    "FirstRequests",
    "Load",
    "MemoryRounds",
    "Neighbours",
    "Predictions",
    "Refusals",
    "Spikes",
]


@dataclass(frozen=True, slots=True)
class FirstRequests:
    """The first of its kind, against those that came next, one after another."""

    first_s: float
    next_s: Sequence[float]
    what: str  # first what: "request after the start"
    unit: str = "to the first token"
    minor_faults: int | None = None  # of the server's processes, during the first
    major_faults: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryRounds:
    """Memory after each of several rounds of equal traffic, while nothing is under way."""

    sizes: Sequence[int]
    requests_per_round: int
    source: str  # whose figure it is: "resident memory of its processes"
    first_use: Sequence[int] = ()  # of the same rounds: bytes of blocks used at least once, which were there before
    answered: float = 1.0  # share of their requests


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Who else wanted the cores meanwhile, in cores on average."""

    cores: int
    server: float | None = None
    client: float = 0.0
    others: float | None = None
    stolen: float | None = None  # by the host of a virtual machine
    throttled: float | None = None  # share of the time in which a quota stopped the server
    load: float | None = None  # average of a minute: runnable and waiting for a disk
    swapped_pages: int | None = None  # read back from swap


@dataclass(frozen=True, slots=True)
class Load:
    """One level of a closed loop."""

    clients: int
    per_s: float  # tokens; inputs of models that answer at once
    in_flight: float  # mean, as the client has it
    num_answered: int
    neighbours: Neighbours
    num_late: int = 0  # given up, since the time was over
    mean_batch: float | None = None  # by the server's own counters
    seen_batch: float | None = None  # streams between their first and last token at once, as seen from here
    running_max: float | None = None
    waiting_mean: float | None = None
    kv_usage_max: float | None = None
    preemptions: float | None = None
    held: Mapping[str, int] = field(default_factory=dict)  # why the queue's first waited, by how many looks
    cuts: Mapping[str, float] = field(default_factory=dict)  # why batches were cut: models that answer at once
    batch_limit: float | None = None  # most requests in one step, where the server says
    workers: float | None = None  # of a model that answers at once


@dataclass(frozen=True, slots=True)
class Refusals:
    """Of all requests of the checks."""

    sent: int
    too_many: int = 0  # 429
    unavailable: int = 0  # 503
    failed: Mapping[str, int] = field(default_factory=dict)  # all else that was no answer, in words


@dataclass(frozen=True, slots=True)
class Spikes:
    """Gaps between two events of a stream, or whole answers of models that answer at once: while nothing else arrived,
    and while long prompts did."""

    steady_s: Sequence[float]
    mixed_s: Sequence[float]
    streams: int
    prompt_tokens: int  # of what arrived
    wall_s: float
    neighbours: Neighbours
    of: str = "gaps"  # or "answers"
    standstills_s: Sequence[float] = ()  # for each prompt that arrived, the longest gap of a stream that it fell into
    preemptions: float | None = None
    gc_pause_s: float | None = None  # during both
    gc_runs: float | None = None
    gc_frozen: float | None = None  # objects put aside after loading


@dataclass(frozen=True, slots=True)
class Company:
    """One greedy prompt, and what was answered to it."""

    alone: str
    again: str
    among: Mapping[int, str]  # how many were under way → the answer
    margin: float | None = None  # nats between the first two tokens to choose from, where the answers part
    at_token: int | None = None


@dataclass(frozen=True, slots=True)
class Predictions:
    """One input, and what was computed of it."""

    alone: Sequence[float]
    again: Sequence[float]
    among: Mapping[str, Sequence[float]]  # in which company → the same
