"""Whether a server falls further and further behind, seen while it is being tested: so that a level which can only get
worse need not be finished, and none of a higher rate be started.

Two things are followed over the time of a level: how many requests are open (due and not yet ended), and the time to
first token. A server that holds the rate lets both settle; one that does not lets both grow for as long as it lasts.

A queue remembers: a burst is still in it a second later. A straight line through such values looks far more certain
than it is (Granger and Newbold 1974, "Spurious regressions in econometrics"): of queues at 80 % of what they can do, a
fit called more than a third saturated. What a queue gains in one span of time and in the next is independent, at worst
of opposite sign. So what is fitted is the mean of these gains, and it is believed where its confidence interval
(Student's t) lies above zero, for both. Bursts make gains vary and the interval wider by themselves.

Stopping saves time and nothing else: growth must be certain, it must double what is waited for, and in doubt a level
goes on to its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev

from aie.bench.statistics import Interval
from aie.bench.student import student_quantile

__all__ = ["Growth", "Rules", "Sample", "growth", "saturated", "span_means"]

Sample = tuple[float, float]
"""A time in seconds, and what was seen then."""

_FEWEST_SPANS = 6


@dataclass(frozen=True, slots=True)
class Rules:
    """When growth is called saturation."""

    min_s: float = 10.0  # of what is looked at; less says nothing
    window_s: float = 120.0  # the latest part, which is looked at
    num_spans: int = 12
    confidence: float = 0.995  # of each; it is asked about once a second
    factor: float = 2.0  # from the first quarter of the window to the last


@dataclass(frozen=True, slots=True)
class Growth:
    """Of means over equal spans of time. per_span: with its interval; first, last: means of the quarters at the
    ends."""

    per_span: float
    interval: Interval
    first: float
    last: float

    def is_certain(self, factor: float) -> bool:
        """Whether it surely grows, and by so much."""
        return self.interval[0] > 0.0 and self.last >= factor * self.first


def saturated(
    num_open: Sequence[Sample],
    ttft_s: Sequence[Sample],
    now_s: float,
    *,
    settled_s: float = 0.0,
    rules: Rules | None = None,
) -> str | None:
    """What was seen where the server is saturated; None where it is not, or where nothing can be said yet.

    num_open: requests that are due and not ended, looked at at regular times; ttft_s: by when the first token came,
    from when the request was due. settled_s: until then requests only begin to overlap, so that more and more of them
    are open on any server; that part is not looked at.
    """
    rules = rules or Rules()
    begin_s = max(settled_s, now_s - rules.window_s)
    if now_s - begin_s < rules.min_s:
        return None
    queue, wait = (
        growth(span_means(samples, begin_s, now_s, rules.num_spans), rules.confidence) for samples in (num_open, ttft_s)
    )
    if queue is None or wait is None or not (queue.is_certain(rules.factor) and wait.is_certain(rules.factor)):
        return None
    return (
        f"open requests grew from {queue.first:.0f} to {queue.last:.0f} and TTFT from {wait.first * 1e3:.0f} to "
        f"{wait.last * 1e3:.0f} ms within {now_s - begin_s:.0f} s"
    )


def span_means(samples: Sequence[Sample], begin_s: float, end_s: float, num_spans: int) -> list[float]:
    """The mean of each of `num_spans` equal parts of the time. One without samples is as the one before it, which can
    only make growth less certain; those before the first sample are left out."""
    spans: list[list[float]] = [[] for _ in range(num_spans)]
    each_s = (end_s - begin_s) / num_spans
    for at_s, value in samples:
        if begin_s <= at_s < end_s:
            spans[min(num_spans - 1, int((at_s - begin_s) / each_s))].append(value)
    means: list[float] = []
    for values in spans:
        if values:
            means.append(fmean(values))
        elif means:
            means.append(means[-1])
    return means


def growth(means: Sequence[float], confidence: float) -> Growth | None:
    """None of fewer than six spans."""
    if len(means) < _FEWEST_SPANS:
        return None
    gains = [after - before for before, after in pairwise(means)]
    gain = fmean(gains)
    half = student_quantile(confidence, len(gains) - 1) * stdev(gains) / sqrt(len(gains))
    quarter = max(1, len(means) // 4)
    return Growth(gain, (gain - half, gain + half), fmean(means[:quarter]), fmean(means[-quarter:]))
