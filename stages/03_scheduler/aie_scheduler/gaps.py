"""How long until the next request comes, learnt from those that came.

An exponentially weighted mean of the gaps between arrivals, the newest with weight 1/8 (the smoothing that TCP uses for
round trips: Jacobson 1988, "Congestion Avoidance and Control"). A gap counts for at most `longest_s`: beyond the time
that anybody would wait, longer is no worse, and a night of silence must not make the morning's first batches small.

A cut ends the gap that is under way, and begins another. Where clients send again when they are answered, nobody comes
while all of them wait; a batcher that took the pause of its own making for the gap between arrivals would wait the
longer the longer it had waited. Where they come as they like, nothing is lost: how long it takes from any moment to the
next arrival has the same mean (Poisson), and batches for which nobody is expected are cut at an arrival anyway.

A gap that is under way is news too: while nobody comes, the estimate of when somebody will come has to recede. With
gaps that are exponentially distributed, one in twenty is longer than three means.
"""

__all__ = ["ArrivalGaps"]

WEIGHT = 1 / 8
PATIENCE = 3.0  # means without an arrival, after which the stream counts as interrupted


class ArrivalGaps:
    """One stream of arrivals. Times are those of the requests, so a test may make them up."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._mean_s: float | None = None
        self._last_s: float | None = None  # the last arrival, or a cut since

    @property
    def mean_s(self) -> float | None:
        """Smoothed gap in seconds; None before the second arrival."""
        return self._mean_s

    def arrive(self, now: float) -> None:
        """Somebody came."""
        if self._last_s is not None:
            gap_s = min(max(now - self._last_s, 0.0), self._longest_s)
            self._mean_s = gap_s if self._mean_s is None else self._mean_s + WEIGHT * (gap_s - self._mean_s)
        self._last_s = now

    def cut(self, now: float) -> None:
        """Those who waited need not wait any more, and may cause who comes next."""
        if self._last_s is not None:
            self._last_s = max(self._last_s, now)

    def give_up_s(self, until_s: float) -> float:
        """The moment from which it is no use to wait for company until `until_s`; `until_s` while nothing is known.

        At once (minus infinity) when the next arrival is not to be expected before `until_s`; otherwise when nobody has
        come for three means.
        """
        if self._mean_s is None or self._last_s is None:
            return until_s
        if self._last_s + self._mean_s > until_s:
            return float("-inf")
        return min(until_s, self._last_s + PATIENCE * self._mean_s)
