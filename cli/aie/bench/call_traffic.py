"""What is sent where a request is bytes already when the clock starts: to models that answer at once, to plain HTTP
endpoints, and of a mix of parts.

It has the same face as `Traffic`, so that closed and open loop, search, repeats and reports are the same for both.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from aie.bench.generator import Call
from aie.bench.streaming_plan import Level, Traffic
from aie.bench.workload import Cancel

__all__ = ["MOST", "AnyTraffic", "CallTraffic", "Source"]

MOST = 200_000  # requests of a level that the clock ends: what is kept of each is small, but not nothing


@dataclass(frozen=True, slots=True)
class Source:
    """Where the requests of one part come from. make: so many different ones, of a seed."""

    make: Callable[[int, int], Sequence[Call]]
    most: int  # different ones; a longer level sends them again, in the same order
    part: str = ""
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class CallTraffic:
    """All sources together. what: in a heading; default_s: how long a level of the closed loop takes, unless told."""

    what: str
    sources: Sequence[Source]
    seed: int
    timeout_s: float
    default_s: float
    cancel: Cancel | None = None  # of answers in one piece: hangs up when all has been sent
    warm_up: tuple[int, int] = (64, 8)  # requests of each source and clients, in no figure
    chat: bool = False
    think_s: float = 0.0

    def requests(self, count: int, number: int) -> list[Call]:
        """`count` of them, in a seeded order. number: of the level, so that two levels differ."""
        draw = random.Random(self.seed * 7919 + number)
        if len(self.sources) == 1:
            chosen = [0] * count
        else:
            chosen = draw.choices(range(len(self.sources)), [source.share for source in self.sources], k=count)
        pools = [self._pool(source, chosen.count(index), number) for index, source in enumerate(self.sources)]
        calls = [next(pools[index]) for index in chosen]
        return calls if self.cancel is None else _leaving(calls, self.cancel, self.seed)

    def warm_up_calls(self) -> list[Call]:
        """Some of every source, however small its share."""
        count = self.warm_up[0]
        return [call for source in self.sources for call in islice(self._pool(source, count, 0), count)]

    def closed_levels(self, clients: Sequence[int], *, requests: int | None, duration_s: float | None) -> list[Level]:
        """With neither a number of requests nor a duration the clock decides, which suits small and large models."""
        if requests is None and duration_s is None:
            duration_s = self.default_s
        count = requests or MOST
        by_clock = requests is None
        return [Level(self.requests(count, number), number, duration_s, by_clock=by_clock) for number in clients]

    def _pool(self, source: Source, count: int, number: int) -> "cycle[Call]":
        made = source.make(min(count, source.most), self.seed * 7919 + number) if count else ()
        return cycle([call if call.part == source.part else replace(call, part=source.part) for call in made])


def _leaving(calls: Sequence[Call], cancel: Cancel, seed: int) -> list[Call]:
    """Some of them hang up; as few different ones as before, since each is sent to the generator once."""
    draw = random.Random(seed ^ 0x5EED)
    gone: dict[int, Call] = {}
    found = []
    for call in calls:
        if draw.random() < cancel.share:
            found.append(gone.setdefault(id(call), replace(call, hang_up_after=0)))
        else:
            found.append(call)
    return found


AnyTraffic = Traffic | CallTraffic
"""Of models that generate text, or of anything else."""
