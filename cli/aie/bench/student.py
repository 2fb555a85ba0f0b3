"""Quantiles of Student's t distribution, for any confidence and any degrees of freedom.

A table would do for 95 % of whole degrees. Comparing runs of unequal spread gives fractions of degrees (Welch), and
looking at several figures at once needs a higher confidence for each.
"""

import math
from functools import lru_cache

__all__ = ["student_quantile"]

_TINY = 1e-300
_MOST_TERMS = 500


@lru_cache(maxsize=1024)
def student_quantile(confidence: float, degrees: float) -> float:
    """The t that |T| does not exceed with this confidence, T of so many degrees of freedom; both sides together."""
    low, high = 0.0, 1.0
    while _outside(high, degrees) > 1.0 - confidence:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _outside(middle, degrees) > 1.0 - confidence else (low, middle)
    return high


def _outside(t: float, degrees: float) -> float:
    """P(|T| > t): the incomplete beta function at degrees / (degrees + t²)."""
    return _beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8) on the side
    on which that converges fast."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)) from front to back (Lentz's method)."""
    value, upper, lower = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1.0 / (1.0 + d * lower or _TINY)
        upper = 1.0 + d / upper or _TINY
        value *= upper * lower
        if abs(upper * lower - 1.0) < 1e-13:
            break
    return value
