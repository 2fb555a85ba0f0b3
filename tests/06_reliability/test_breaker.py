"""CLOSED → OPEN → HALF_OPEN → CLOSED, and the traps on the way."""

import pytest

from aie_reliability import BreakerState, CircuitBreaker, CircuitOpenError


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(threshold=3, recovery_s=30.0, probe_timeout_s=10.0, clock=clock)


def fail(breaker, times):
    for _ in range(times):
        breaker.acquire().failure()


def test_opens_at_the_threshold_and_not_before(breaker):
    fail(breaker, 2)
    assert breaker.state is BreakerState.CLOSED
    fail(breaker, 1)
    assert breaker.state is BreakerState.OPEN
    with pytest.raises(CircuitOpenError) as refusal:
        breaker.acquire()
    assert refusal.value.status == 503
    assert refusal.value.retry_after_s == pytest.approx(30.0)


def test_a_success_resets_the_count(breaker):
    fail(breaker, 2)
    breaker.acquire().success()
    fail(breaker, 2)
    assert breaker.state is BreakerState.CLOSED


def test_half_open_lets_one_probe_through(breaker, clock):
    fail(breaker, 3)
    clock.advance(30)
    assert breaker.state is BreakerState.HALF_OPEN
    probe = breaker.acquire()
    with pytest.raises(CircuitOpenError):
        breaker.acquire()
    probe.success()
    assert breaker.state is BreakerState.CLOSED
    breaker.acquire().success()


def test_a_failed_probe_opens_again_for_the_whole_time(breaker, clock):
    fail(breaker, 3)
    clock.advance(30)
    breaker.acquire().failure()
    clock.advance(29.9)
    with pytest.raises(CircuitOpenError):
        breaker.acquire()
    clock.advance(0.1)
    breaker.acquire().success()
    assert breaker.state is BreakerState.CLOSED


def test_a_hung_probe_does_not_block_for_ever(breaker, clock):
    fail(breaker, 3)
    clock.advance(30)
    hung = breaker.acquire()
    clock.advance(10)
    with pytest.raises(CircuitOpenError):
        breaker.acquire()  # the probe is given up: open again
    assert breaker.state is BreakerState.OPEN
    clock.advance(30)
    second = breaker.acquire()
    hung.failure()  # old news
    second.success()
    assert breaker.state is BreakerState.CLOSED


def test_an_abandoned_probe_makes_room_for_the_next(breaker, clock):
    fail(breaker, 3)
    clock.advance(30)
    breaker.acquire().abandon()
    breaker.acquire().success()
    assert breaker.state is BreakerState.CLOSED


def test_late_failures_from_before_do_not_open_it_again(breaker, clock):
    late = [breaker.acquire() for _ in range(3)]
    fail(breaker, 3)
    clock.advance(30)
    breaker.acquire().success()
    for permit in late:
        permit.failure()
    assert breaker.state is BreakerState.CLOSED


def test_a_permit_counts_once(breaker):
    permit = breaker.acquire()
    for _ in range(5):
        permit.failure()
    assert breaker.state is BreakerState.CLOSED
