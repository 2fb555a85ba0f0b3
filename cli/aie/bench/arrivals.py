"""When requests are sent in the open loop: a schedule drawn before the clock starts, which waits for no answer.

Users do not wait for each other, so a load test that sends its next request when the last has been answered slows down
with the server and hides what users would have felt. Gaps are constant, exponential (Poisson arrivals) or gamma
distributed: with burstiness b their coefficient of variation is 1/√b, so below 1 arrivals come in bursts and above 1
they are more even than chance. A rate that changes over the run, in a ramp, in steps or for a spike, is had by
stretching time: arrivals of unit rate at u₁, u₂, … come at Λ⁻¹(u₁), Λ⁻¹(u₂), … where Λ(t) is how many are expected
until t. Gaps are never rescaled to hit a total, which would make them something else than what they are called.
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from aie_engine import InvalidInputError

__all__ = ["ArrivalKind", "Arrivals", "Rate", "Step", "parse_rates"]

ArrivalKind = Literal["constant", "poisson", "gamma"]


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a run, in which the rate stays or goes evenly from `first` to `last` requests per second."""

    first: float
    last: float
    seconds: float

    def __str__(self) -> str:
        return f"{_from_to(self.first, self.last)}x{self.seconds:g}s"

    @property
    def expected(self) -> float:
        """Requests."""
        return (self.first + self.last) / 2 * self.seconds

    def when(self, expected: float) -> float:
        """Seconds from its begin until so many requests are expected, which are not more than all of its."""
        slope = (self.last - self.first) / self.seconds
        # first·t + slope·t²/2 = expected, by the form that loses no digits where slope is small
        root = self.first + math.sqrt(max(0.0, self.first * self.first + 2.0 * slope * expected))
        return 2.0 * expected / root if root > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second: `first` at the start, `last` at the end of the run; or as its steps say, which then also
    say how long it takes."""

    first: float
    last: float
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.steps)) or _from_to(self.first, self.last)

    @classmethod
    def of_steps(cls, steps: Sequence[Step]) -> "Rate":
        """One after another."""
        return cls(steps[0].first, steps[-1].last, tuple(steps))

    @property
    def seconds(self) -> float | None:
        """How long it takes; None where it does not say."""
        return sum(step.seconds for step in self.steps) or None

    @property
    def mean(self) -> float:
        seconds = self.seconds
        return (self.first + self.last) / 2 if seconds is None else sum(one.expected for one in self.steps) / seconds

    @property
    def is_constant(self) -> bool:
        """Whether it is the same all the time."""
        return self.first == self.last and all(step.first == step.last == self.first for step in self.steps)

    def over(self, duration_s: float) -> tuple[Step, ...]:
        """Its steps in a run of so many seconds."""
        return self.steps or (Step(self.first, self.last, duration_s),)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests of one run are spaced. Raises `InvalidInputError`."""

    rate: Rate
    kind: ArrivalKind = "poisson"
    burstiness: float = 1.0  # of gamma

    def __post_init__(self) -> None:
        if self.kind not in get_args(ArrivalKind):
            raise InvalidInputError(
                f"--arrivals is {self.kind!r}; choose {', '.join(get_args(ArrivalKind))}.", param="arrivals"
            )
        if not 0 < self.burstiness < math.inf:
            raise InvalidInputError(f"--burstiness must be positive, not {self.burstiness}.", param="burstiness")

    def schedule(self, duration_s: float, seed: int) -> list[float]:
        """Seconds from the start at which requests are due, in order, all below `duration_s`."""
        due: list[float] = []
        units = self._unit_arrivals(random.Random(seed))
        unit, expected, begin_s = next(units), 0.0, 0.0
        for step in self.rate.over(duration_s):
            while unit < expected + step.expected:
                at_s = begin_s + step.when(unit - expected)
                if at_s >= duration_s:
                    return due
                due.append(at_s)
                unit = next(units)
            expected += step.expected
            begin_s += step.seconds
        return due

    def _unit_arrivals(self, draw: random.Random) -> Iterator[float]:
        at = -1.0 if self.kind == "constant" else 0.0  # an even beat begins at once
        while True:
            if self.kind == "constant":
                at += 1.0
            elif self.kind == "poisson":
                at += draw.expovariate(1.0)
            else:
                at += draw.gammavariate(self.burstiness, 1.0 / self.burstiness)
            yield at


_STEP = re.compile(r"(?P<rate>[^x×]+)[x×](?P<seconds>\d+(?:\.\d+)?)s")
_MOST_S = 1e6


def parse_rates(text: str) -> list[Rate]:
    """`5`, several by comma, `1-20` for a ramp; or one rate in steps, `2x30s,10x10s,2x30s`, of which each may be a
    ramp. The same rate twice is one. Raises `InvalidInputError`."""
    parts = [part.strip() for part in text.split(",")]
    steps = [_STEP.fullmatch(part) for part in parts]
    if not any(steps):
        return list(dict.fromkeys(Rate(*_bounds(part, text)) for part in parts))
    made = []
    for step in steps:
        if step is None:
            raise InvalidInputError(
                f"--rate is {text!r}: where one part says how long it lasts, as 10x30s does, all must.", param="rate"
            )
        made.append(Step(*_bounds(step["rate"], text, may_be_zero=True), float(step["seconds"])))
    rate = Rate.of_steps(made)
    if not (0 < (rate.seconds or 0.0) <= _MOST_S and all(step.seconds > 0 for step in made) and rate.mean > 0):
        raise InvalidInputError(
            f"--rate is {text!r}; give each step some time, and at least one of them requests.", param="rate"
        )
    return [rate]


def _bounds(part: str, text: str, *, may_be_zero: bool = False) -> tuple[float, float]:
    low, dash, high = part.strip().partition("-")
    try:
        first, last = float(low), float(high if dash else low)
    except ValueError:
        first = last = math.nan
    if not (0 <= first <= 1e5 and 0 <= last <= 1e5 and (first + last > 0 or may_be_zero)):
        raise InvalidInputError(
            f"--rate is {text!r}; give requests per second: 5, several as in 1,2,5, a ramp as in 1-20, or steps as in "
            "2x30s,10x10s,2x30s.",
            param="rate",
        )
    return first, last


def _from_to(first: float, last: float) -> str:
    return f"{first:g}" if first == last else f"{first:g}-{last:g}"
