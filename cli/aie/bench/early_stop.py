"""Watches a level of the open loop while it runs, and says when the rest of it can change nothing any more.

The server is saturated, so that every later request would only wait longer: an estimate, and a careful one (see
`saturation`). Or it says so itself, by refusing a part of the requests for a while. Or a promise is looked at, and is
broken whatever comes: so many requests were late that even if all others were early, the percentile would not be kept.
That is no estimate.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from aie.bench.generator import Outcome
from aie.bench.saturation import Rules, Sample, saturated
from aie.bench.slo import Slo

__all__ = ["EarlyStop"]

_FIRST_ENDS = 10  # requests whose end-to-end time tells how long a level takes to fill up
_RAMPS = 1.0  # so many of their median
_REFUSED = 0.1  # of those that ended lately
_FEWEST_REFUSED = 20


@dataclass(slots=True)
class EarlyStop:
    """Fed with what happens; `look` now and then. All times on the clock of the outcomes. due: in seconds from the
    start, of first turns alone, with at least one; slo: what must still be possible, of `planned` requests."""

    due: Sequence[float]
    planned: int
    slo: Slo | None = None
    rules: Rules = field(default_factory=Rules)
    watches_growth: bool = True  # False: a rate that changes makes queues grow by itself
    _open: dict[int, Outcome] = field(default_factory=dict)
    _start_s: float | None = None
    _num_later: int = 0  # turns after the first that were begun
    _num_ended: int = 0
    _num_open: deque[Sample] = field(default_factory=deque)
    _waits: deque[Sample] = field(default_factory=deque)
    _ends: deque[tuple[float, bool]] = field(default_factory=deque)  # the latest, and whether they were refused
    _first_ends: list[float] = field(default_factory=list)
    _late: list[int] = field(default_factory=list)  # ended requests beyond each limit
    _seen: set[int] = field(default_factory=set)  # open ones whose first token has been counted

    def __post_init__(self) -> None:
        self._late = [0] * (0 if self.slo is None else len(self.slo.limits))

    def started(self, outcome: Outcome) -> None:
        """It is being sent."""
        self._open[id(outcome)] = outcome
        self._num_later += outcome.turn > 0
        if outcome.turn == 0 and outcome.due_s is not None:  # of several processes any may be heard of first
            start_s = outcome.due_s - self.due[0]
            self._start_s = start_s if self._start_s is None else min(start_s, self._start_s)

    def first(self, outcome: Outcome) -> None:
        """Its first token has come."""
        if outcome.ttft_from_schedule_s is not None and outcome.first_token_s is not None:
            self._seen.add(id(outcome))
            self._waits.append((outcome.first_token_s, outcome.ttft_from_schedule_s))

    def ended(self, outcome: Outcome) -> None:
        """It is over."""
        self._open.pop(id(outcome), None)
        self._num_ended += 1
        self._ends.append((outcome.end_s, outcome.kind == "rejected"))
        if id(outcome) in self._seen:
            self._seen.remove(id(outcome))
        elif outcome.first_token_s is not None:
            self.first(outcome)
            self._seen.discard(id(outcome))
        elif outcome.error is None:  # an answer in one piece
            self._waits.append((outcome.end_s, outcome.e2e_from_schedule_s))
        if outcome.error is None and len(self._first_ends) < _FIRST_ENDS:
            self._first_ends.append(outcome.e2e_s)
        if self.slo is not None:
            for index, limit in enumerate(self.slo.limits):
                self._late[index] += limit.is_broken_by(outcome)

    def look(self, now_s: float) -> str | None:
        """Why to stop; None to go on. Call it several times a second: what it sees then is what it judges by."""
        if self._start_s is None:
            return None
        due = bisect_right(self.due, now_s - self._start_s)
        self._num_open.append((now_s, float(max(0, due + self._num_later - self._num_ended))))
        for samples in (self._num_open, self._waits):
            while samples and samples[0][0] < now_s - self.rules.window_s:
                samples.popleft()
        if (broken := self._hopeless(now_s)) is not None:
            return broken
        if not self.watches_growth:
            return None
        if (refused := self._refusals(now_s)) is not None:
            return f"saturated: {refused}"
        if len(self._first_ends) < _FIRST_ENDS // 2:
            return None
        settled_s = self._start_s + _RAMPS * median(self._first_ends)
        seen = saturated(self._num_open, self._waits, now_s, settled_s=settled_s, rules=self.rules)
        return None if seen is None else f"saturated: {seen}"

    def _refusals(self, now_s: float) -> str | None:
        assert self._start_s is not None
        while self._ends and self._ends[0][0] < now_s - self.rules.min_s:
            self._ends.popleft()
        refused = sum(is_refused for _, is_refused in self._ends)
        is_early = now_s - self._start_s < self.rules.min_s
        if is_early or refused < _FEWEST_REFUSED or refused < _REFUSED * len(self._ends):
            return None
        return f"it refused {refused} of the {len(self._ends)} requests that ended within {self.rules.min_s:.0f} s"

    def _hopeless(self, now_s: float) -> str | None:
        if self.slo is None:
            return None
        for limit, ended in zip(self.slo.limits, self._late, strict=True):
            late = ended + sum(limit.is_broken_already_by(one, now_s) for one in self._open.values())
            may = limit.may_be_late(self.planned)
            if late > may:
                return f"{limit} is broken: {late} of {self.planned} requests were late or failed, and {may} may"
        return None
