"""Two reports of `aie bench --find-max`: the highest rate that kept the promise, before and after.

Each search ends with a bracket, the highest rate that was held and the lowest that was not. Where the brackets do not
overlap, the rates differ; more than that two searches do not show.
"""

import math

from aie.bench.compare import Comparison, Figure, Verdict
from aie.bench.recorded import Recorded

__all__ = ["compare_searches"]


def compare_searches(before: Recorded, after: Recorded) -> Comparison:
    """Raises `InvalidInputError` where the two are of different tests."""
    before.must_be_of_the_same_test(after)
    (old_low, old_high), (new_low, new_high) = _bracket(before), _bracket(after)
    verdict: Verdict = "no difference shown"
    if new_low >= old_high:
        verdict = "faster"
    elif new_high <= old_low:
        verdict = "slower"
    part = 1.0 / old_low if old_low else 0.0
    low, high = (new_low - old_high) * part, (new_high - old_low) * part
    interval = (low, high) if math.isfinite(low) and math.isfinite(high) and part else None
    figure = Figure("search", "highest rate", "per s", old_low, new_low, (new_low - old_low) * part, interval, verdict)
    return Comparison((figure,), 1, (*before.remarks("A", ()), *after.remarks("B", ())))


def _bracket(side: Recorded) -> tuple[float, float]:
    """Requests per second: held, and broken. Nothing held: from 0; nothing broken: no end."""
    found = side.document["find_max"]
    held, broken = found["held_per_s"], found["broken_per_s"]
    return (0.0 if held is None else float(held)), (math.inf if broken is None else float(broken))
