"""The highest rate that a server holds: doubling until a promise is broken, then halving the distance.

Every probe is an open-loop run of its own. A rate is held when the SLO is kept and the server keeps up: where requests
of the last third take much longer than those of the first, a longer run would have broken any promise. A probe that
was stopped early is broken (`early_stop`). The answer is a bracket, the highest rate that was held and the lowest that
was not; no measurement of finite length says more, and how wide it is stands beside it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aie.bench.generator import Outcome
from aie.bench.keeping_up import falls_behind
from aie.bench.slo import Slo
from aie.bench.statistics import min_samples

__all__ = ["Probe", "Search", "find_max", "judge"]

_PRECISION = 1.1  # the bracket's upper end over its lower
_MOST_PROBES = 16
_LOWEST = 0.05  # requests/s


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried."""

    rate: float
    broken: tuple[str, ...]  # promises that were not kept; none: the rate is held
    measured: tuple[tuple[str, float | None], ...] = ()  # limit and milliseconds; None: not answered
    requests: int = 0
    seconds: float = 0.0
    is_stopped: bool = False  # before its time, since nothing could change any more
    is_dead: bool = False  # every request failed: that is no matter of its rate

    @property
    def is_held(self) -> bool:
        return not self.broken

    @classmethod
    def of(
        cls, rate: float, slo: Slo, outcomes: Sequence[Outcome], seconds: float, stopped: str | None = None
    ) -> "Probe":
        """Judged by its outcomes, and by why it was stopped."""
        values = [None if value is None else value * 1e3 for value in slo.measured(outcomes)]
        measured = tuple(zip(map(str, slo.limits), values, strict=True))
        broken = judge(slo, outcomes) if stopped is None else (stopped,)
        is_dead = bool(outcomes) and all(one.kind in ("failed", "cut") for one in outcomes)
        if is_dead:
            commonest, _ = Counter(one.error for one in outcomes).most_common(1)[0]
            broken = (f"every request failed: {commonest}",)
        return cls(rate, broken, measured, len(outcomes), seconds, stopped is not None, is_dead)


@dataclass(slots=True)
class Search:
    """All probes, and what follows from them. unit: of rates."""

    unit: str = "requests/s"
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

    @property
    def precision(self) -> float | None:
        """How much higher the lowest broken rate is than the highest that was held, as a part of it; None where the
        search found no such pair."""
        held, broken = self.held, self.broken
        return None if held is None or broken is None else broken.rate / held.rate - 1.0

    def verdict(self) -> str:
        """One line."""
        held, broken = self.held, self.broken
        tried = f"{len(self.probes)} probe{'' if len(self.probes) == 1 else 's'}"
        if held is None:
            lowest = "" if broken is None else f"; already {broken.rate:.3g} {self.unit} break it: {broken.broken[0]}"
            return f"no rate that was tried keeps the SLO{lowest} ({tried})"
        if broken is None:
            return f"at least {held.rate:.3g} {self.unit}; higher rates were not tried ({tried})"
        return (
            f"{held.rate:.3g} {self.unit}; {broken.rate:.3g} break it: {'; '.join(broken.broken)} "
            f"({tried}, known within {self.precision:.0%})"
        )

    def remarks(self, slo: Slo) -> list[str]:
        """What the verdict does not say: how few requests a percentile of a probe that held it is of."""
        held = self.held
        if held is None or not held.requests:
            return []
        found = []
        for share in sorted({limit.share for limit in slo.limits if limit.share is not None}):
            if held.requests < (needed := min_samples(share)):
                found.append(
                    f"{held.rate:.3g} {self.unit} were held by {held.requests} requests: too few to speak of P"
                    f"{share * 100:g}, which takes {needed}. A longer --duration of the probes makes it firmer."
                )
        return found

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        held, broken = self.held, self.broken
        return {
            "held_per_s": None if held is None else held.rate,
            "broken_per_s": None if broken is None else broken.rate,
            "unit": self.unit,
            "precision": self.precision,
            "probes": [
                {
                    "rate": one.rate, "broken": list(one.broken), "measured_ms": dict(one.measured),
                    "requests": one.requests, "seconds": one.seconds, "stopped_early": one.is_stopped,
                }
                for one in self.probes
            ],
        }  # fmt: skip


def judge(slo: Slo, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """What a run did not keep."""
    late = falls_behind(outcomes)
    return (*slo.broken_by(outcomes), *([] if late is None else [late]))


def find_max(probe: Callable[[float], Probe], first: float, search: Search) -> None:
    """`probe` runs one rate. Begins at `first` requests/s, and adds to `search`."""
    rate = first
    while len(search.probes) < _MOST_PROBES:
        search.probes.append(probe(rate))
        if search.probes[-1].is_dead:
            break
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
            rate = float(f"{(held.rate * broken.rate) ** 0.5:.3g}")  # as it will be read
