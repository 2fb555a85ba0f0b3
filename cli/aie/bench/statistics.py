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
from statistics import fmean, stdev, variance

from aie.bench.student import student_quantile

__all__ = [
    "Interval",
    "chance_of_failures",
    "difference_interval",
    "mean_interval",
    "median_interval",
    "min_samples",
    "percentile",
    "tail",
    "upper_bound",
]

Interval = tuple[float, float]

CONFIDENCE = 0.99  # of what is said about tails
_OF_MEANS = 0.95


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
    half = student_quantile(_OF_MEANS, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, (mean - half, mean + half)


def difference_interval(before: Sequence[float], after: Sequence[float], confidence: float) -> Interval | None:
    """Of mean(after) − mean(before) over independent runs whose spreads may differ (Welch's t); None of single runs."""
    if len(before) < 2 or len(after) < 2:
        return None
    middle = fmean(after) - fmean(before)
    parts = [variance(values) / len(values) for values in (before, after)]
    if sum(parts) == 0.0:
        return middle, middle
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (before, after), strict=True)
    )
    half = student_quantile(confidence, degrees) * math.sqrt(sum(parts))
    return middle - half, middle + half


def median_interval(values: Sequence[float]) -> Interval | None:
    """What the true median lies within with 99 % confidence, whatever the distribution: from the t-th smallest to the
    t-th largest, where the chance that fewer than t samples lie on one side is at most half a percent. None of fewer
    than twelve samples."""
    rank = _rank_from_top(len(values), 0.5, 1.0 - (1.0 - CONFIDENCE) / 2)
    if rank < 1:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def chance_of_failures(before: tuple[int, int], after: tuple[int, int]) -> float:
    """How likely it is that so many of all failures fall to `after` when both fail alike (Fisher's exact test, one
    side). before, after: (failed, total)."""
    (failed, total), (failed_after, total_after) = before, after
    failures, everything = failed + failed_after, total + total_after

    def log_ways(of: int, chosen: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)

    return math.fsum(
        math.exp(log_ways(total_after, n) + log_ways(total, failures - n) - log_ways(everything, failures))
        for n in range(max(failed_after, failures - total), min(failures, total_after) + 1)
    )


@lru_cache(maxsize=4096)
def _rank_from_top(n: int, share: float, confidence: float = CONFIDENCE) -> int:
    """The largest t with P(X ≤ t) ≤ 1 − confidence, X ~ Binomial(n, 1 − share); −1 if even t = 0 is too likely."""
    beyond = 1.0 - share
    log_term = n * math.log1p(-beyond)  # of P(X = 0); logarithms, since it underflows for large n
    total, t = 0.0, -1
    while t < n:
        total += math.exp(log_term)
        if total > 1.0 - confidence:
            return t
        t += 1
        log_term += math.log((n - t) / (t + 1)) + math.log(beyond) - math.log1p(-beyond) if t < n else 0.0
    return t
