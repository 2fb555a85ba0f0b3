"""Rate limit: a token bucket per client.

A bucket holds up to `burst` tokens and gains `rate_per_s` of them every second; a request takes one. Nothing ticks: the
level is worked out from the time of the last look, so an idle bucket costs nothing and the cost of a request is O(1).
Source: the token bucket of traffic shaping (J. Turner, "New directions in communications", 1986).
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from aie_reliability.errors import RateLimitedError

__all__ = ["RateLimiter", "TokenBucket"]


class TokenBucket:
    """One client's allowance. Not locked by itself: `RateLimiter` holds the lock.

    Invariant: 0 <= level <= burst.
    """

    __slots__ = ("_clock", "_last_s", "_level", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        assert rate_per_s > 0 and burst >= 1, (rate_per_s, burst)
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._clock = clock
        self._level = burst
        self._last_s = clock()

    def take(self) -> float:
        """Takes one token and returns 0.0, or takes nothing and returns the seconds until one will be there."""
        now = self._clock()
        self._level = min(self.burst, self._level + max(0.0, now - self._last_s) * self.rate_per_s)
        self._last_s = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self.rate_per_s


class RateLimiter:
    """A bucket per client key, at most `max_keys` of them: the longest unseen goes first.

    Dropping a bucket refills it, so the bound trades memory for leniency towards clients that have been away; an
    attacker who invents keys gains nothing over one who uses fresh keys anyway. Thread-safe.
    """

    def __init__(
        self,
        rate_per_s: float,
        burst: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_keys: int = 10_000,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst if burst is not None else max(1.0, rate_per_s)
        self._clock = clock
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, key: str) -> None:
        """Takes a token for `key`, or raises `RateLimitedError` with the time until the next one."""
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = TokenBucket(self._rate_per_s, self._burst, self._clock)
                if len(self._buckets) > self._max_keys:
                    self._buckets.popitem(last=False)
            else:
                self._buckets.move_to_end(key)
            wait_s = bucket.take()
        if wait_s > 0:
            raise RateLimitedError(
                f"Too many requests: this client may send {self._rate_per_s:g} per second "
                f"(bursts of {self._burst:g}). Try again in {wait_s:.1f} s.",
                retry_after_s=wait_s,
            )
