"""What may be said of a distribution from so many samples, and no more.

A percentile of few samples is a guess that looks like a measurement: the P99 of 40 is simply the largest. `tail` says
None below a floor, and `upper_bound` gives what the true percentile stays below with 99 % confidence: of n samples, the
number X above the true P-th percentile is binomial with n and 1 − P, so the t-th largest, with t the most for which
X ≤ t is as unlikely as 1 %, lies above it (MLPerf's early-stopping criterion; Reddi et al. 2020, "MLPerf Inference
Benchmark"). At least one sample must lie beyond, hence the floors: 64 for P90, 662 for P99.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev

__all__ = ["Interval", "mean_interval", "min_samples", "percentile", "tail", "upper_bound"]

Interval = tuple[float, float]

CONFIDENCE = 0.99

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal distribution's.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.960


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest rank: the smallest value that at least `share` of all values do not exceed. None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def tail(values: Sequence[float], share: float) -> float | None:
    """`percentile`, or None where there are too few samples to speak of one."""
    return percentile(values, share) if len(values) >= min_samples(share) else None


def upper_bound(values: Sequence[float], share: float) -> float | None:
    """What the true percentile stays below with 99 % confidence; None where there are too few samples."""
    rank = _rank_from_top(len(values), share)
    return sorted(values)[-rank] if rank >= 1 else None


@lru_cache
def min_samples(share: float) -> int:
    """The fewest samples of which `tail` speaks. The median needs none."""
    if share <= 0.5:
        return 1
    n = 1
    while _rank_from_top(n, share) < 1:
        n += 1
    return n


def mean_interval(values: Sequence[float]) -> tuple[float, Interval | None]:
    """Mean, and the 95 % confidence interval of it over independent runs (Student's t); None of a single one."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, None
    degrees = len(values) - 1
    factor = _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else _NORMAL
    half = factor * stdev(values) / math.sqrt(len(values))
    return mean, (mean - half, mean + half)


@lru_cache(maxsize=4096)
def _rank_from_top(n: int, share: float) -> int:
    """The largest t with P(X ≤ t) ≤ 1 − confidence, X ~ Binomial(n, 1 − share); −1 if even t = 0 is too likely."""
    beyond = 1.0 - share
    log_term = n * math.log1p(-beyond)  # of P(X = 0); logarithms, since it underflows for large n
    total, t = 0.0, -1
    while t < n:
        total += math.exp(log_term)
        if total > 1.0 - CONFIDENCE:
            return t
        t += 1
        log_term += math.log((n - t) / (t + 1)) + math.log(beyond) - math.log1p(-beyond) if t < n else 0.0
    return t
