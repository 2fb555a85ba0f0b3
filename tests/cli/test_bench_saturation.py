"""Servers that hold a rate and servers that do not, as seen while they are tested: made up, by a queue of k workers."""

import heapq
import random

import pytest

from aie.bench.arrivals import Arrivals, Rate
from aie.bench.client import HUNG_UP, Outcome
from aie.bench.early_stop import EarlyStop
from aie.bench.saturation import Rules, growth, saturated, span_means
from aie.bench.slo import parse_slo


def queue(rate, *, workers=8, seconds=1.0, duration_s=60.0, seed=0, kind="poisson", burstiness=1.0, lasts=None):
    """Requests of a server of so many workers, in the order in which they are due. lasts: seconds for the request due
    at a time; otherwise lognormal around `seconds`."""
    draw = random.Random(seed)
    free = [0.0] * workers
    made = []
    for due in Arrivals(Rate(rate, rate), kind, burstiness).schedule(duration_s, seed):
        takes = seconds * draw.lognormvariate(-0.125, 0.5) if lasts is None else lasts(due)
        begin = max(due, heapq.heappop(free))
        heapq.heappush(free, begin + takes)
        first = begin + 0.1 * takes
        made.append(Outcome(due, first, begin + takes, begin + takes, 5, 5, 200, None, [], due, first))
    return made


def replay(outcomes, *, until_s=60.0, offset_s=1000.0, **options):
    """When the level would have been stopped, and why. The clock starts somewhere, as a real one does."""
    stop = EarlyStop([one.due_s for one in outcomes], len(outcomes), **options)
    for one in outcomes:
        for name in ("sent_s", "due_s", "first_token_s", "last_token_s", "end_s", "first_byte_s"):
            if getattr(one, name) is not None:
                setattr(one, name, getattr(one, name) + offset_s)
    happens = [(one.sent_s, 0, stop.started, one) for one in outcomes]
    happens += [(one.first_token_s, 1, stop.first, one) for one in outcomes if one.first_token_s is not None]
    happens += [(one.end_s, 2, stop.ended, one) for one in outcomes]
    happens.sort(key=lambda what: what[:2])
    now_s = offset_s
    while now_s < offset_s + until_s:
        now_s += 0.25
        while happens and happens[0][0] <= now_s:
            _, _, tell, one = happens.pop(0)
            tell(one)
        if (why := stop.look(now_s)) is not None:
            return now_s - offset_s, why
    return None


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("shape", [(8, 1.0), (1, 0.2), (16, 2.0)])
def test_a_server_that_holds_the_rate_is_left_alone(share, shape):
    workers, seconds = shape
    for seed in range(6):
        outcomes = queue(share * workers / seconds, workers=workers, seconds=seconds, seed=seed)
        assert replay(outcomes) is None


@pytest.mark.parametrize("burstiness", [0.2, 0.5])
def test_bursts_are_no_saturation(burstiness):
    for seed in range(6):
        assert replay(queue(4.0, kind="gamma", burstiness=burstiness, seed=seed)) is None


@pytest.mark.parametrize(("share", "by_s"), [(1.5, 30.0), (2.0, 16.0), (5.0, 15.0)])
def test_one_that_does_not_is_seen_soon(share, by_s):
    for seed in range(4):
        at_s, why = replay(queue(share * 8.0, seed=seed))
        assert 10.0 <= at_s <= by_s
        assert why.startswith("saturated: open requests grew from ") and "TTFT from" in why


def test_one_that_grows_slower_is_seen_later():
    at_s, _ = replay(queue(1.2 * 8.0, duration_s=300.0, seed=1), until_s=300.0)
    assert 15.0 < at_s < 150.0


def test_a_level_that_fills_up_is_not_saturated_by_that():
    # Answers of twenty seconds: for so long more and more are open on a server however fast.
    assert replay(queue(10.0, workers=500, lasts=lambda _: 20.0), until_s=60.0) is None


def test_a_pause_that_is_worked_off_is_none():
    assert replay(queue(4.0, lasts=lambda due: 6.0 if 20.0 < due < 22.0 else 1.0)) is None


def test_one_request_that_hangs_is_none():
    outcomes = queue(4.0, seed=2)
    outcomes[10].first_token_s = outcomes[10].first_byte_s = None
    outcomes[10].error, outcomes[10].end_s = "no complete answer within 300 s", 300.0
    assert replay(outcomes) is None


def test_what_waits_in_the_load_generator_waits_too():
    """With a cap no more than eight are under way, on a server that seems to be idle."""
    outcomes = queue(16.0, seed=3)
    for one in outcomes:
        one.sent_s = max(one.due_s, one.first_token_s - 0.1)
    assert replay(outcomes) is not None


def test_a_rate_that_changes_is_watched_for_promises_alone():
    outcomes = queue(16.0, seed=3)
    assert replay(outcomes, watches_growth=False) is None
    assert replay(queue(16.0, seed=3), watches_growth=False, slo=parse_slo("ttft<2s")) is not None


def test_models_that_answer_at_once_are_watched_by_their_answers():
    outcomes = queue(16.0, seed=3)
    for one in outcomes:
        one.first_token_s = one.last_token_s = None
    assert replay(outcomes) is not None
    calm = queue(4.0, seed=3)
    for one in calm:
        one.first_token_s = one.last_token_s = None
    assert replay(calm) is None


def test_gains_are_what_is_fitted():
    assert span_means([(0.1, 1.0), (0.4, 3.0), (1.5, 5.0), (9.0, 7.0)], 0.0, 4.0, 4) == [2.0, 5.0, 5.0, 5.0]
    assert span_means([(2.5, 5.0)], 0.0, 4.0, 4) == [5.0, 5.0]
    even = growth([float(n) for n in range(1, 13)], 0.99)
    assert even.per_span == 1.0 and even.interval == (1.0, 1.0) and (even.first, even.last) == (2.0, 11.0)
    # Gains of 3 and −1 by turns: mean 1.18, deviation 2.09 of 11, Student's t of 10 degrees of freedom 3.169.
    zigzag = growth([0.0, 3.0, 2.0, 5.0, 4.0, 7.0, 6.0, 9.0, 8.0, 11.0, 10.0, 13.0], 0.99)
    assert zigzag.interval[0] == pytest.approx(13 / 11 - 3.169 * 2.0889 / 11**0.5, abs=2e-3)
    assert not zigzag.is_certain(2.0) and even.is_certain(5.0) and not even.is_certain(6.0)
    assert growth([1.0] * 5, 0.99) is None


def test_too_short_says_nothing():
    rising = [(at / 4, at * 1.0) for at in range(400)]
    assert saturated(rising, rising, 9.9) is None and saturated(rising, rising, 10.1) is not None
    assert saturated(rising, rising, 19.9, settled_s=10.0) is None
    assert saturated(rising, [(at, 1.0) for at, _ in rising], 50.0) is None
    assert saturated(rising, [], 50.0, rules=Rules(min_s=1.0)) is None


@pytest.mark.parametrize(("share", "is_stopped"), [(0.0, False), (0.05, False), (0.5, True), (1.0, True)])
def test_a_server_that_refuses_says_so_itself(share, is_stopped):
    outcomes = queue(20.0, workers=1000, seconds=0.2, seed=4)
    draw = random.Random(1)
    for one in outcomes:
        if draw.random() < share:
            one.status, one.error, one.first_token_s, one.end_s = 503, "HTTP 503: full", None, one.due_s
    found = replay(outcomes)
    assert (found is not None) == is_stopped
    if found is not None:
        assert 10.0 <= found[0] < 13.0 and "saturated: it refused" in found[1]


# Promises that are broken whatever comes


def one(due, ttft, *, error=None, status=200):
    return Outcome(due, due + ttft, due + ttft, due + ttft, 5, 5, status, error, [], due, due + ttft)


def promised(slo, outcomes, *, planned=None, now_s=1e6):
    stop = EarlyStop([o.due_s for o in outcomes], planned or len(outcomes), parse_slo(slo), watches_growth=False)
    for outcome in outcomes:
        stop.started(outcome)
        stop.ended(outcome)
    return stop.look(now_s)


@pytest.mark.parametrize("count", [1, 20, 64, 100, 101])
@pytest.mark.parametrize("slo", ["ttft_p99<1s", "ttft_p90<1s", "ttft_p50<1s", "ttft<1s"])
def test_it_is_hopeless_exactly_when_the_whole_run_would_be_broken(count, slo):
    """However many were late: the percentile over all of them says the same."""
    for late in range(count + 1):
        outcomes = [one(float(n), 2.0 if n < late else 0.5) for n in range(count)]
        assert (promised(slo, outcomes) is not None) == bool(parse_slo(slo).broken_by(outcomes))


def test_those_that_are_open_count_by_what_they_have_waited():
    stop = EarlyStop([0.0, 0.0], 2, parse_slo("ttft<1s,tpot<1s"), watches_growth=False)
    waiting = Outcome(sent_s=100.0, due_s=100.0)
    stop.started(waiting)
    assert stop.look(100.9) is None
    assert "1 of 2 requests were late or failed, and 0 may" in stop.look(101.0)
    early = Outcome(sent_s=100.0, due_s=100.0, first_token_s=100.5)
    stop = EarlyStop([0.0], 1, parse_slo("ttft<1s"), watches_growth=False)
    stop.started(early)
    stop.first(early)
    assert stop.look(500.0) is None
    endless = EarlyStop([0.0], 1, parse_slo("e2e<1s"), watches_growth=False)
    endless.started(early)
    assert endless.look(101.0) is not None


def test_refused_is_late_and_hung_up_is_not():
    assert promised("ttft_p90<1s", [one(0.0, 0.1, error="HTTP 503", status=503)] * 2, planned=19) is not None
    assert promised("ttft_p90<1s", [one(0.0, 9.0, error=HUNG_UP)] * 2, planned=19) is None
