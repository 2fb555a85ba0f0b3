"""Growing memory: a straight line through rounds of equal traffic, and how sure one may be that it rises."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from aie.bench.student import student_quantile
from aie.console import format_bytes
from aie.doctor.finding import MORE_TIME, Finding
from aie.doctor.measured import MemoryRounds
from aie.doctor.remedies import how_to_start_leak_hunt

__all__ = ["Trend", "judge_memory", "trend"]

WHAT = "memory"
_FEWEST = 4  # rounds
_CONFIDENCE = 0.95
_NOISE_BYTES = 64 << 10  # per round, below which an allocator's moods look alike
_ENOUGH_ANSWERED = 0.5
_LEVELS_OFF = 0.4  # of the whole slope, below which the slope of the second half shows that growth ends


@dataclass(frozen=True, slots=True)
class Trend:
    """Bytes per round, and the 95 % confidence interval of that; `late` of the second half alone."""

    slope: float
    low: float
    high: float
    late: float


def trend(sizes: Sequence[float]) -> Trend:
    """Least squares over the rounds 0, 1, 2, …; at least three of them."""
    slope, error = _fit(sizes)
    half = student_quantile(_CONFIDENCE, len(sizes) - 2) * error
    late, _ = _fit(sizes[len(sizes) // 2 - (len(sizes) < 6) :])
    return Trend(slope, slope - half, slope + half, late)


def judge_memory(seen: MemoryRounds, server: str, url: str) -> Finding:
    """Bad: the whole interval lies above 64 KiB a round, and the second half still rises. What the server was seen to
    use for the first time of memory that it had all along (`first_use`) is no growth."""
    if len(seen.sizes) < _FEWEST:
        return Finding(
            WHAT, "note", f"only {len(seen.sizes)} rounds of traffic were done in the time there was; a trend needs "
            f"{_FEWEST}", MORE_TIME,
        )  # fmt: skip
    if seen.answered < _ENOUGH_ANSWERED:
        return Finding(
            WHAT, "note", f"only {seen.answered:.0%} of the requests were answered, and refusing takes no memory: "
            "nothing is said of growth", "see what refused them",
        )  # fmt: skip
    explained = seen.first_use or [0] * len(seen.sizes)
    line = trend([size - first for size, first in zip(seen.sizes, explained, strict=True)])
    margin = (line.high - line.low) / 2
    text = (
        f"{_signed(line.slope)} ± {format_bytes(margin)} a round, in {len(seen.sizes)} rounds of "
        f"{seen.requests_per_round} equal requests ({seen.source}: {format_bytes(seen.sizes[0])} to "
        f"{format_bytes(seen.sizes[-1])}"
    )
    first_use = explained[-1] - explained[0]
    text += f", {format_bytes(first_use)} of it KV blocks used for the first time)" if first_use > 0 else ")"
    figures: dict[str, object] = {
        "sizes": list(seen.sizes), "first_use": list(seen.first_use), "slope": line.slope, "low": line.low,
        "high": line.high, "requests_per_round": seen.requests_per_round,
    }  # fmt: skip
    hunt = how_to_start_leak_hunt(server, url)
    if line.low <= _NOISE_BYTES:
        if line.high > _NOISE_BYTES + _seen_of(seen):
            return Finding(
                WHAT, "note", f"{text}: too restless to tell growth from noise", f"if it may grow: {hunt}", figures
            )
        return Finding(WHAT, "ok", f"{text}: no growth shown", figures=figures)
    if line.late < _LEVELS_OFF * line.slope:
        return Finding(
            WHAT, "note", f"{text}: it grew and levels off, as caches do that fill", f"if it goes on: {hunt}", figures
        )
    per_thousand = line.slope / seen.requests_per_round * 1000
    return Finding(
        WHAT, "bad", f"{text}: it grows with the requests, {format_bytes(per_thousand)} for a thousand of them",
        hunt, figures,
    )  # fmt: skip


def _seen_of(seen: MemoryRounds) -> float:
    """A slope that would matter: a hundredth of all memory in ten rounds."""
    return fmean(seen.sizes) / 1000


def _fit(values: Sequence[float]) -> tuple[float, float]:
    """Slope, and its standard error; infinite where two points leave nothing to judge it by."""
    n = len(values)
    middle, mean = (n - 1) / 2, fmean(values)
    spread = sum((x - middle) ** 2 for x in range(n))
    slope = sum((x - middle) * (y - mean) for x, y in enumerate(values)) / spread
    rest = sum((y - mean - slope * (x - middle)) ** 2 for x, y in enumerate(values))
    return slope, math.sqrt(rest / (n - 2) / spread) if n > 2 else math.inf


def _signed(nbytes: float) -> str:
    return ("+" if nbytes >= 0 else "−") + format_bytes(abs(nbytes))
