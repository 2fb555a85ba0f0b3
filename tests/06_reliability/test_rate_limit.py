"""The bucket gives its burst at once and then its rate, for each client apart."""

import pytest

from aie_reliability import RateLimitedError, RateLimiter, TokenBucket


def test_burst_then_rate(clock):
    bucket = TokenBucket(rate_per_s=2.0, burst=3, clock=clock)
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    clock.advance(0.5)
    assert bucket.take() == 0.0
    assert bucket.take() == 0.5


def test_level_never_exceeds_burst(clock):
    bucket = TokenBucket(rate_per_s=1.0, burst=2, clock=clock)
    clock.advance(1_000_000)
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 1.0]


def test_clock_going_backwards_gives_nothing(clock):
    bucket = TokenBucket(rate_per_s=1.0, burst=1, clock=clock)
    assert bucket.take() == 0.0
    clock.advance(-50)
    assert bucket.take() == 1.0


def test_clients_do_not_share_a_bucket(clock):
    limiter = RateLimiter(1.0, 1, clock=clock)
    limiter.check("a")
    limiter.check("b")
    with pytest.raises(RateLimitedError) as refusal:
        limiter.check("a")
    assert refusal.value.status == 429
    assert refusal.value.retry_after_s == pytest.approx(1.0)


def test_number_of_clients_remembered_is_bounded(clock):
    limiter = RateLimiter(1.0, 1, clock=clock, max_keys=2)
    for key in ("a", "b", "c"):  # the bucket of "a" is the longest unseen and goes
        limiter.check(key)
    limiter.check("a")
    with pytest.raises(RateLimitedError):
        limiter.check("c")
