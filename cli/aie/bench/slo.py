"""What a user is promised, as text: `ttft<500ms,tpot<50ms` or, of a whole run, `ttft_p99<500ms`.

A limit without a percentile is one that every single request must keep: those that keep all of them make up goodput.
A limit with a percentile is a verdict on the run; `aie bench --find-max` looks for the highest rate that passes it.
Limits on tokens say nothing of answers that come in one piece, as some of a mix do: those are looked at end to end. Of
a mix a limit may be that of one part: `e2e_p99<50ms@embeddings`, or with its model, `@embeddings:minilm-l6`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean

from aie.bench.generator import Outcome
from aie.bench.statistics import percentile
from aie_engine import InvalidInputError

__all__ = ["METRICS", "Limit", "Slo", "parse_slo"]

METRICS = ("ttft", "tpot", "itl", "e2e")
_LIMIT = re.compile(r"(ttft|tpot|itl|e2e)(?:_p(\d{1,2}(?:\.\d+)?))?<=?(\d+(?:\.\d+)?)(ms|s)")
_EXAMPLE = "ttft_p99<500ms,tpot_p99<50ms"


@dataclass(frozen=True, slots=True)
class Limit:
    """One metric, one bound. share: 0.99 for P99; None: every request by itself. part: of a mix; None: of all."""

    metric: str
    share: float | None
    limit_s: float
    part: str | None = None

    def __str__(self) -> str:
        of = "" if self.share is None else f"_p{self.share * 100:g}"
        return f"{self.metric}{of}<{self.limit_s * 1e3:g}ms{'' if self.part is None else f'@{self.part}'}"

    def is_of(self, label: str) -> bool:
        """Whether it is a limit of the part of this label."""
        return self.part is None or label == self.part or label.startswith(f"{self.part}:")

    def is_about(self, outcome: Outcome) -> bool:
        """False for a limit on tokens where the answer comes in one piece, and for one of another part."""
        return (outcome.is_stream or self.metric == "e2e") and self.is_of(outcome.part)

    def is_broken_by(self, outcome: Outcome) -> bool:
        """Whether one request that has ended is beyond the bound, percentile or not. One that was not answered is; one
        that hung up, as it was asked to, says nothing."""
        if not self.is_about(outcome):
            return False
        if outcome.error is not None:
            return outcome.kind not in ("cancelled", "stopped")
        value = _of(outcome, self.metric)
        return value is None or value >= self.limit_s

    def is_broken_already_by(self, outcome: Outcome, now_s: float) -> bool:
        """The same of one that is still open: what it has waited so far can only become more."""
        if not self.is_about(outcome):
            return False
        waited_s = now_s - (outcome.sent_s if outcome.due_s is None else outcome.due_s)
        if self.metric == "ttft":
            known = outcome.ttft_from_schedule_s
            return (waited_s if known is None else known) >= self.limit_s
        return self.metric == "e2e" and waited_s >= self.limit_s

    def may_be_late(self, count: int) -> int:
        """Of so many requests, how many may be beyond the bound while it is kept (nearest rank)."""
        return 0 if self.share is None else count - ceil(self.share * count)


@dataclass(frozen=True, slots=True)
class Slo:
    """All limits together."""

    limits: tuple[Limit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    def is_met_by(self, outcome: Outcome) -> bool:
        """Whether one request keeps the limits, percentiles taken as limits on each. A failed one never does, and one
        of a single token, which has no TPOT, is not let off: its end-to-end time stands in."""
        if outcome.error is not None:
            return False
        values = [(_of(outcome, limit.metric), limit.limit_s) for limit in self.limits if limit.is_about(outcome)]
        return all(value is not None and value < limit_s for value, limit_s in values)

    def broken_by(self, outcomes: Sequence[Outcome]) -> list[str]:
        """The limits that a run does not keep, each with what was measured."""
        return [
            f"{limit}: {'no answer' if value is None else f'{value * 1e3:.0f} ms'}"
            for limit, value in zip(self.limits, self.measured(outcomes), strict=True)
            if value is None or value >= limit.limit_s
        ]

    def measured(self, outcomes: Sequence[Outcome]) -> list[float | None]:
        """What each limit is about, in seconds; None: without end. Requests that were not answered count as endless: a
        server that refuses the slow half has no better tail for it. Those that hung up, as they were asked to, say
        nothing of the server; those that were open when the level was stopped waited at least for so long."""
        stayed = [one for one in outcomes if one.kind != "cancelled"]
        found = []
        for limit in self.limits:
            values = [_waited(one, limit.metric) for one in stayed if limit.is_about(one)]
            value = percentile(values, 1.0 if limit.share is None else limit.share)
            found.append(None if value is None or value == inf else value)
        return found


def parse_slo(text: str) -> Slo:
    """Raises `InvalidInputError`."""
    limits = []
    for part in text.replace(" ", "").split(","):
        bound, at, of = part.partition("@")
        found = None if at and not of else _LIMIT.fullmatch(bound.lower())
        if found is None:
            raise InvalidInputError(
                f"--slo has {part!r}; write metric, perhaps percentile, and limit, as in {_EXAMPLE}. "
                f"Metrics are {', '.join(METRICS)}.",
                param="slo",
            )
        metric, share, number, unit = found.groups()
        limit_s = float(number) * (1e-3 if unit == "ms" else 1.0)
        if limit_s <= 0 or (share is not None and not 0 < float(share) < 100):
            raise InvalidInputError(f"--slo has {part!r}; limit and percentile must be above 0.", param="slo")
        limits.append(Limit(metric, None if share is None else float(share) / 100, limit_s, of or None))
    return Slo(tuple(limits))


def _of(outcome: Outcome, metric: str) -> float | None:
    """Seconds; latencies that begin with a request begin when it was due."""
    if metric == "ttft":
        return outcome.ttft_from_schedule_s
    if metric == "e2e":
        return outcome.e2e_from_schedule_s
    if metric == "itl":
        return max(outcome.gaps_s) if outcome.gaps_s else 0.0
    return outcome.e2e_s if outcome.tpot_s is None else outcome.tpot_s


def _waited(outcome: Outcome, metric: str) -> float:
    if outcome.kind == "stopped":
        if metric == "tpot":
            return fmean(outcome.gaps_s) if outcome.gaps_s else 0.0
        value = _of(outcome, metric)
        return outcome.e2e_from_schedule_s if value is None else value
    value = None if outcome.error is not None else _of(outcome, metric)
    return inf if value is None else value
