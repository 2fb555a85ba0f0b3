"""How much traffic there shall be, and what is written down of a run."""

from collections import Counter
from dataclasses import dataclass

from aie.memdebug.show import growth_json
from aie.memdebug.traffic import Mix
from aie.memdebug.verdict import Marks, Verdict, live_bytes, slab_blocks
from aie_engine import InvalidInputError

__all__ = ["Load", "check_load", "report"]

_MAX_CONCURRENCY = 256


@dataclass(frozen=True, slots=True)
class Load:
    """How much traffic. `after`: how many of the requests are the warm-up; None: a tenth, at least a window full."""

    requests: int
    concurrency: int
    mix: Mix
    after: int | None = None
    limit_bytes: int | None = None  # growth beyond it fails the run

    @property
    def num_warm_up(self) -> int:
        if self.after is not None:
            return self.after
        return min(max(self.concurrency, self.requests // 10), self.requests // 2)


def check_load(load: Load) -> None:
    """Raises `InvalidInputError` for counts that make no sense."""
    if load.requests < 1:
        raise InvalidInputError("--requests must be at least 1.", param="requests")
    if not 1 <= load.concurrency <= _MAX_CONCURRENCY:
        raise InvalidInputError(
            f"--concurrency is {load.concurrency}; give 1 to {_MAX_CONCURRENCY} requests at once.", param="concurrency"
        )
    if load.after is not None and not 0 <= load.after < load.requests:
        raise InvalidInputError(
            f"--after is {load.after}; the warm-up is a part of the {load.requests} requests (--requests), not all.",
            param="after",
        )


def report(marks: Marks, verdict: Verdict, endings: Counter[str], load: Load) -> dict[str, object]:
    """For `--json`. Lists have a value for each mark: start, baseline, middle, end."""
    all_marks = (marks.start, *marks.after_warm_up())
    return {
        "requests": load.requests,
        "warm_up": load.num_warm_up,
        "seed": load.mix.seed,
        "endings": dict(endings),
        "live_bytes": [live_bytes(mark) for mark in all_marks],
        "slab_blocks": [slab_blocks(mark) for mark in all_marks],
        "rss_bytes": [mark.rss_bytes for mark in all_marks],
        "rss_growth": verdict.rss_share,
        "leaks": [growth_json(change) for change in verdict.leaks],
        "grown": [growth_json(change) for change in verdict.grown],
        "over_limit": list(verdict.over_limit),
        "unnamed_bytes": verdict.unnamed_bytes,
        "failed": verdict.failed,
        "snapshot": marks.end.to_json(),
    }
