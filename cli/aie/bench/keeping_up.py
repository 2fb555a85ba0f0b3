"""Whether a server kept up with the rate at which requests came, or only seemed to for as long as the run was."""

from collections.abc import Sequence
from statistics import median

from aie.bench.generator import Outcome

__all__ = ["falls_behind"]

_GROWTH = 2.0  # of the end-to-end time from the first third of a run to the last, from which it falls behind
_FEWEST = 5  # requests in a third, below which nothing is said of it


def falls_behind(outcomes: Sequence[Outcome]) -> str | None:
    """What was seen; None where it kept up, or too little is known."""
    answered = sorted((one for one in outcomes if one.error is None), key=lambda one: one.due_s or one.sent_s)
    third = len(answered) // 3
    if third < _FEWEST:
        return None
    early, late = (median(one.e2e_from_schedule_s for one in part) for part in (answered[:third], answered[-third:]))
    if late <= _GROWTH * early:
        return None
    return f"falls behind: E2E of {early * 1e3:.0f} ms at first, {late * 1e3:.0f} ms at last"
