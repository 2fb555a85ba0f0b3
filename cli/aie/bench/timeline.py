"""Output tokens per second over the time of a run: ramp, plateau, stalls and drain as they were."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from aie.bench.client import Outcome

__all__ = ["Timeline", "timeline"]

_MOST_BINS = 60
_SHORTEST_S = 0.1


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bin i reaches from i · bin_s to (i + 1) · bin_s after the start; the last may be cut off by the end."""

    bin_s: float
    tokens_per_s: tuple[float, ...]


def timeline(outcomes: Sequence[Outcome], start_s: float, wall_s: float) -> Timeline | None:
    """None where nothing arrived. An event may carry several tokens; each counts as its answer's mean."""
    if wall_s <= 0 or not any(one.first_token_s is not None for one in outcomes):
        return None
    num_bins = max(1, min(_MOST_BINS, int(wall_s / _SHORTEST_S)))
    bin_s = wall_s / num_bins
    tokens = [0.0] * num_bins
    for one in outcomes:
        if one.first_token_s is None:
            continue
        events = list(accumulate([one.first_token_s, *one.gaps_s]))
        # One that was cut off never said how many tokens it had: an event is then one.
        each = (one.num_output_tokens or len(events)) / len(events)
        for at_s in events:
            tokens[min(num_bins - 1, max(0, int((at_s - start_s) / bin_s)))] += each
    return Timeline(bin_s, tuple(round(count / bin_s, 3) for count in tokens))
