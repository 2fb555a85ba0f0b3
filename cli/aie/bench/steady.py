"""The part of a run in which the server was as busy as it was meant to be.

At the start clients arrive and nothing is decoding yet; at the end the last requests run alone. Tokens per second over
the whole run mix that in, the more the shorter the run. The steady window reaches from the first moment at which at
least `_SHARE` of the mean number of requests is in flight to the last such moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from aie.bench.generator import Outcome

__all__ = ["Steady", "steady_window"]

_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Steady:
    """Output tokens that arrived between two moments, and answers that were complete by then."""

    begin_s: float
    end_s: float
    tokens: float
    answers: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def since(self, start_s: float) -> "Steady":
        """The same on a clock that begins then."""
        return replace(self, begin_s=self.begin_s - start_s, end_s=self.end_s - start_s)


def steady_window(outcomes: Sequence[Outcome]) -> Steady | None:
    """None where nothing ran for any time."""
    steps = sorted([(one.sent_s, 1) for one in outcomes] + [(one.end_s, -1) for one in outcomes])
    if not steps or steps[-1][0] <= steps[0][0]:
        return None
    times = [at for at, _ in steps]
    counts = list(accumulate(change for _, change in steps))
    spans = [(counts[i], times[i], times[i + 1]) for i in range(len(times) - 1)]
    mean = sum(count * (end - begin) for count, begin, end in spans) / (times[-1] - times[0])
    busy = [(begin, end) for count, begin, end in spans if count >= _SHARE * mean and end > begin]
    begin_s, end_s = busy[0][0], busy[-1][1]
    answers = sum(one.error is None and begin_s < one.end_s <= end_s for one in outcomes)
    return Steady(begin_s, end_s, sum(_tokens(one, begin_s, end_s) for one in outcomes), answers)


def _tokens(outcome: Outcome, begin_s: float, end_s: float) -> float:
    """Of an answer's tokens, how many came in the window. An event may carry several; each counts as the mean."""
    if outcome.first_token_s is None or outcome.error is not None:  # as in the rate over the whole run
        return 0.0
    events = list(accumulate([outcome.first_token_s, *outcome.gaps_s]))
    inside = sum(1 for at in events if begin_s <= at <= end_s)
    return outcome.num_output_tokens * inside / len(events)
