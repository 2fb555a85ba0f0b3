"""When requests are sent in the open loop: a schedule drawn before the clock starts, which waits for no answer.

Users do not wait for each other, so a load test that sends its next request when the last has been answered slows down
with the server and hides what users would have felt. Gaps are constant, exponential (Poisson arrivals) or gamma
distributed: with burstiness b their coefficient of variation is 1/√b, so below 1 arrivals come in bursts and above 1
they are more even than chance. A rate that changes over the run is had by stretching time: arrivals of unit rate at u₁,
u₂, … come at Λ⁻¹(u₁), Λ⁻¹(u₂), … where Λ(t) is how many are expected until t. Gaps are never rescaled to hit a total,
which would make them something else than what they are called.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from aie_engine import InvalidInputError

__all__ = ["ArrivalKind", "Arrivals", "Rate", "parse_rates"]

ArrivalKind = Literal["constant", "poisson", "gamma"]


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second: `first` at the start, `last` at the end of the run."""

    first: float
    last: float

    def __str__(self) -> str:
        return f"{self.first:g}" if self.first == self.last else f"{self.first:g}-{self.last:g}"

    @property
    def mean(self) -> float:
        return (self.first + self.last) / 2


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
        for unit in self._unit_arrivals(random.Random(seed)):
            at = self._stretched(unit, duration_s)
            if at is None or at >= duration_s:
                return due
            due.append(at)
        raise AssertionError("arrivals have no end")

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

    def _stretched(self, unit: float, duration_s: float) -> float | None:
        """The time by which `unit` arrivals are expected; None where that never comes."""
        first, slope = self.rate.first, (self.rate.last - self.rate.first) / duration_s
        if slope == 0.0:
            return unit / first
        # first·t + slope·t²/2 = unit, by the form that loses no digits where slope is small
        root = first * first + 2.0 * slope * unit
        if root < 0.0:
            return None
        return 2.0 * unit / (first + math.sqrt(root)) if first + math.sqrt(root) > 0.0 else 0.0


def parse_rates(text: str) -> list[Rate]:
    """`5`, several by comma, and `1-20` for a ramp. Raises `InvalidInputError`."""
    rates = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        try:
            rate = Rate(float(low), float(high if dash else low))
        except ValueError:
            rate = Rate(math.nan, math.nan)
        if not (0 <= rate.first <= 1e5 and 0 <= rate.last <= 1e5 and rate.mean > 0):
            raise InvalidInputError(
                f"--rate is {text!r}; give requests per second: 5, several as in 1,2,5, or a ramp as in 1-20.",
                param="rate",
            )
        rates.append(rate)
    return rates
