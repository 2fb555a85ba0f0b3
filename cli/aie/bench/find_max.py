"""The highest rate that a server holds: doubling until a promise is broken, then halving the distance.

Every probe is an open-loop run of its own. A rate is held when the SLO is kept and the server keeps up: where requests
of the last third take much longer than those of the first, a longer run would have broken any promise. The answer is a
bracket, the highest rate that was held and the lowest that was not; no measurement of finite length says more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aie.bench.client import Outcome
from aie.bench.keeping_up import falls_behind
from aie.bench.slo import Slo

__all__ = ["Probe", "Search", "find_max", "judge"]

_PRECISION = 1.1  # the bracket's upper end over its lower
_MOST_PROBES = 16
_GROWTH = 2.0  # of the end-to-end time from the first third of a run to the last, from which it falls behind
_LOWEST = 0.05  # requests/s
_FEWEST = 5  # requests in a third, below which nothing is said of it


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried."""

    rate: float
    broken: tuple[str, ...]  # promises that were not kept; none: the rate is held

    @property
    def is_held(self) -> bool:
        return not self.broken


@dataclass(slots=True)
class Search:
    """All probes, and what follows from them."""

    probes: list[Probe] = field(default_factory=list)

    @property
    def held(self) -> Probe | None:
        """The highest rate that was held, below the lowest that was not."""
        broken = self.broken
        held = [one for one in self.probes if one.is_held and (broken is None or one.rate < broken.rate)]
        return max(held, key=lambda one: one.rate, default=None)

    @property
    def broken(self) -> Probe | None:
        """The lowest rate that was not held."""
        return min((one for one in self.probes if not one.is_held), key=lambda one: one.rate, default=None)

    def verdict(self) -> str:
        """One line."""
        held, broken = self.held, self.broken
        if held is None:
            lowest = "" if broken is None else f"; already {broken.rate:g} requests/s break it: {broken.broken[0]}"
            return f"no rate that was tried keeps the SLO{lowest}"
        if broken is None:
            return f"at least {held.rate:g} requests/s; higher rates were not tried"
        return f"{held.rate:.3g} requests/s; {broken.rate:.3g} break it: {'; '.join(broken.broken)}"


def judge(slo: Slo, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """What a run did not keep."""
    late = falls_behind(outcomes)
    return (*slo.broken_by(outcomes), *([] if late is None else [late]))


def find_max(probe: Callable[[float], Probe], first: float, search: Search) -> None:
    """`probe` runs one rate. Begins at `first` requests/s, and adds to `search`."""
    rate = first
    while len(search.probes) < _MOST_PROBES:
        search.probes.append(probe(rate))
        held, broken = search.held, search.broken
        if broken is None:
            rate *= 2
        elif held is None:
            rate /= 2
            if rate < _LOWEST:  # requests are alone by now: what breaks does so at any rate
                break
        elif broken.rate / held.rate <= _PRECISION:
            break
        else:
            rate = (held.rate * broken.rate) ** 0.5
