"""A level while it runs: what is open, what has ended, how fast tokens come. Values only; others draw them."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from aie.bench.generator import Outcome
from aie.bench.statistics import percentile

__all__ = ["Running", "Snapshot"]

_RECENT = 2000  # requests, and gaps, of which the percentiles are: sorting all of a long run would itself be load
_SPARK = 40


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look. Times in milliseconds; None where nothing was measured yet."""

    elapsed_s: float
    in_flight: int
    ends: dict[str, int]
    ttft_ms: tuple[float | None, float | None]  # P50, P99 of the last requests, without claiming it of all
    itl_ms: tuple[float | None, float | None]
    e2e_ms: tuple[float | None, float | None]
    tokens_per_s: float  # since the look before
    history: tuple[float, ...]  # the same of the looks before

    @property
    def num_ended(self) -> int:
        return sum(self.ends.values())


class Running:
    """Requests as they begin and end; `look` at any time. outcomes: of those that have ended."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.outcomes: list[Outcome] = []
        self._clock = clock
        self.start_s = clock()
        self._open: dict[int, Outcome] = {}
        self._ends: Counter[str] = Counter()
        self._ttft_s: deque[float] = deque(maxlen=_RECENT)
        self._gaps_s: deque[float] = deque(maxlen=_RECENT)
        self._e2e_s: deque[float] = deque(maxlen=_RECENT)
        self._events_ended = self._events_open = 0
        self._seen = (self.start_s, 0)
        self._history: deque[float] = deque(maxlen=_SPARK)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self.start_s

    def begin(self, start_s: float) -> None:
        """All that came before was preparation."""
        self.start_s = start_s
        self._seen = (start_s, 0)

    def started(self, outcome: Outcome) -> None:
        """One more is under way; it is filled when it has ended."""
        self._open[id(outcome)] = outcome

    def ended(self, outcome: Outcome) -> None:
        """It is over."""
        self._open.pop(id(outcome), None)
        self.outcomes.append(outcome)
        self._ends[outcome.kind] += 1
        self._events_ended += _events(outcome)
        if outcome.error is None:
            self._e2e_s.append(outcome.e2e_from_schedule_s)
            if outcome.ttft_s is not None:
                self._ttft_s.append(outcome.ttft_s + outcome.lag_s)
        self._gaps_s.extend(outcome.gaps_s)

    def flowed(self, events: int) -> None:
        """So many events with text have come to the requests that are under way."""
        self._events_open = events

    def look(self) -> Snapshot:
        """Events with text stand for tokens: how many a request had, its server says only at its end."""
        now_s, count = self._clock(), self._events_ended + self._events_open
        before_s, before = self._seen
        if now_s > before_s:
            self._history.append((count - before) / (now_s - before_s))
            self._seen = now_s, count
        return Snapshot(
            now_s - self.start_s,
            len(self._open),
            dict(self._ends),
            _percentiles(self._ttft_s),
            _percentiles(self._gaps_s),
            _percentiles(self._e2e_s),
            self._history[-1] if self._history else 0.0,
            tuple(self._history),
        )


def _events(outcome: Outcome) -> int:
    return 0 if outcome.first_token_s is None else 1 + len(outcome.gaps_s)


def _percentiles(seconds: deque[float]) -> tuple[float | None, float | None]:
    values = [1e3 * value for value in seconds]
    return percentile(values, 0.5), percentile(values, 0.99)
