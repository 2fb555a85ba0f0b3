"""Load that does not wait for answers: when it is sent, what latencies count from, and what is said of them."""

import asyncio
import math
from collections import Counter
from itertools import pairwise

import pytest

from aie.bench.arrivals import Arrivals, Rate, parse_rates
from aie.bench.client import HUNG_UP, Outcome
from aie.bench.find_max import Probe, Search, find_max, judge
from aie.bench.load import LevelResult, Sampler, run_open
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.repeats import GENERATED, Repeated
from aie.bench.report import Latency, latency_table, load_table, summarize
from aie.bench.slo import parse_slo
from aie.bench.statistics import mean_interval, min_samples, percentile, tail, upper_bound
from aie.bench.steady import steady_window
from aie.bench.workload import PlannedRequest, parse_cancel, plan_requests
from aie_engine import InvalidInputError

# What is sent when


def test_constant_arrivals_are_an_even_beat():
    assert Arrivals(Rate(4, 4), "constant").schedule(2.0, 0) == [0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"), [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5)]
)
def test_gaps_have_the_mean_and_the_variation_that_they_are_called_by(kind, burstiness, variation):
    due = Arrivals(Rate(50, 50), kind, burstiness).schedule(400.0, 1)
    gaps = [b - a for a, b in zip([0.0, *due], due, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert deviation / mean == pytest.approx(variation, rel=0.06)
    assert due == sorted(due) and due[0] > 0 and due[-1] < 400


def test_a_schedule_is_its_seed():
    arrivals = Arrivals(Rate(20, 20))
    assert arrivals.schedule(10, 1) == arrivals.schedule(10, 1) != arrivals.schedule(10, 2)


@pytest.mark.parametrize(("first", "last"), [(1, 9), (9, 1), (0, 10), (10, 0)])
def test_a_ramp_has_the_rate_of_each_moment(first, last):
    due = Arrivals(Rate(first, last), "constant").schedule(100.0, 0)
    assert len(due) == pytest.approx(100 * (first + last) / 2, abs=2)
    for begin in (0, 30, 60, 90):
        expected = first + (last - first) * (begin + 5) / 100  # at the middle of ten seconds
        assert sum(begin <= at < begin + 10 for at in due) == pytest.approx(10 * expected, abs=2)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "5,", "1e9", "nan", "0-0", "inf"])
def test_bad_rates(text):
    with pytest.raises(InvalidInputError, match="--rate"):
        parse_rates(text)


def test_rates_as_people_write_them():
    assert parse_rates("5, 0.5,1-20") == [Rate(5, 5), Rate(0.5, 0.5), Rate(1, 20)]


@pytest.mark.parametrize(("kind", "burstiness"), [("even", 1.0), ("gamma", 0.0), ("gamma", math.nan)])
def test_bad_arrivals(kind, burstiness):
    with pytest.raises(InvalidInputError):
        Arrivals(Rate(1, 1), kind, burstiness)


def test_some_clients_leave_and_the_prompts_stay_the_same():
    def plan(cancel):
        return plan_requests(400, input_tokens=(4, 9), output_tokens=(2, 5), seed=3, cancel=cancel)

    with_some, without = plan(parse_cancel("0.25@7tok")), plan(None)
    assert [one.prompt for one in with_some] == [one.prompt for one in without]
    counts = Counter(one.hang_up_after for one in with_some)
    assert set(counts) == {7, None} and counts[7] == pytest.approx(100, abs=25)


@pytest.mark.parametrize("text", ["", "x@2", "0@3", "1.5@3", "0.1@-2", "0.1@x"])
def test_bad_cancel(text):
    with pytest.raises(InvalidInputError, match="--cancel"):
        parse_cancel(text)


def test_prompts_can_begin_alike():
    plan = plan_requests(5, input_tokens=(10, 10), output_tokens=(2, 2), seed=3, shared_prefix=100)
    words = [one.prompt.split() for one in plan]
    assert len({tuple(one[:95]) for one in words}) == 1 and len({tuple(one[95:]) for one in words}) == 5


# What is measured


def answering(scripted, stall=0):
    """A server, what it was asked, and what has to be set before it answers the first `stall` requests."""
    arrived, release = [], asyncio.Event()

    async def answer(asked, writer):
        arrived.append(asked.body["prompt"])
        if len(arrived) <= stall:
            await release.wait()
        writer.write(scripted.HEAD + scripted.text() * 2 + scripted.usage(2) + scripted.END)

    return scripted(answer), arrived, release


def requests(count):
    return [PlannedRequest(f"p{number}", 2) for number in range(count)]


def test_nobody_waits_for_those_before(scripted):
    async def run():
        server, arrived, release = answering(scripted, stall=3)
        async with server:
            sampler = Sampler(server.endpoint, None, lambda: None)

            def done(_outcome):
                release.set()  # by the fourth: the first three are still waiting

            result = await run_open(
                server.endpoint, "m", requests(4), [0, 0, 0, 0], sampler=sampler, timeout_s=30, on_done=done
            )
            return arrived, result

    arrived, result = asyncio.run(run())
    assert sorted(arrived) == ["p0", "p1", "p2", "p3"]
    assert result.concurrency == 4 and [one.error for one in result.outcomes] == [None] * 4
    assert all(one.due_s == result.start_s for one in result.outcomes)


def test_with_a_cap_the_wait_counts_from_when_it_was_due(scripted):
    async def run():
        server, _, _ = answering(scripted)
        async with server:
            sampler = Sampler(server.endpoint, None, lambda: None)
            return await run_open(
                server.endpoint, "m", requests(5), [0.0] * 5, sampler=sampler, timeout_s=30, max_in_flight=1
            )

    result = asyncio.run(run())
    assert result.concurrency == 1
    order = sorted(result.outcomes, key=lambda one: one.sent_s)
    for earlier, later in pairwise(order):
        assert later.sent_s >= earlier.end_s
        assert later.e2e_from_schedule_s == pytest.approx(later.end_s - result.start_s)
        assert later.lag_s >= earlier.e2e_s
    assert order[0].e2e_from_schedule_s < order[-1].e2e_from_schedule_s


def answered(due=0.0, lag=0.0, ttft=0.1, gaps=(0.02, 0.03), tokens=3):
    sent = due + lag
    end = sent + ttft + sum(gaps)
    return Outcome(sent, sent + ttft, end, end, 10, tokens, 200, None, list(gaps), due, sent + ttft / 2)


def test_every_latency_is_exact_from_send_and_from_schedule():
    result = LevelResult(3, [answered(lag=0.0), answered(due=1.0, lag=0.5)], wall_s=2.0, offered_per_s=5.0)
    row = summarize(result)
    assert row.ttfr.p50 == pytest.approx(50)
    assert (row.ttft.max, row.due_ttft.max) == (pytest.approx(100), pytest.approx(600))
    assert (row.e2e.max, row.due_e2e.max) == (pytest.approx(150), pytest.approx(650))
    assert (row.itl.p50, row.itl.max, row.itl.count) == (pytest.approx(20), pytest.approx(30), 4)
    assert row.tpot.mean == pytest.approx(25)
    assert row.lag.max == pytest.approx(500) and row.is_client_bound
    assert row.label == "5/s" and row.tokens_per_event == 1.0
    assert "client-bound" in notes([row])[1]


def test_several_tokens_in_an_event_are_said():
    row = summarize(LevelResult(1, [answered(tokens=9)], wall_s=1.0))
    assert row.tokens_per_event == 3.0
    assert any("an event carried 3.00 tokens" in line for line in notes([row]))


def test_how_requests_end():
    def failed(error, status=200, first_byte=None):
        return Outcome(0.0, None, None, 1.0, status=status, error=error, first_byte_s=first_byte)

    outcomes = [
        answered(),
        failed("HTTP 429: slow down", 429),
        failed("HTTP 503: full", 503),
        failed("HTTP 500: oh", 500),
        failed("no complete answer within 3 s", 200, 0.5),
        failed("the stream was cut off", 200, 0.5),
        failed(HUNG_UP, 200, 0.5),
        failed("Connection refused", 0),
    ]
    row = summarize(LevelResult(1, outcomes, wall_s=1.0), parse_slo("e2e<10s"))
    assert row.ends == {
        "answered": 1,
        "rejected": 2,
        "timed out": 1,
        "cut": 1,
        "cancelled": 1,
        "stopped": 0,
        "failed": 2,
    }
    assert (row.requests, row.answered, row.failed, row.good) == (8, 1, 6, 1)


def test_the_steady_window_leaves_ramp_and_drain_out():
    # Two requests run for ten seconds; one of them has a third for company in its last second, and then runs on alone.
    def request(begin, end):
        times = list(range(int(begin) + 1, int(end) + 1))
        gaps = [b - a for a, b in pairwise(times)]
        return Outcome(begin, times[0], times[-1], end, 1, len(times), 200, None, gaps)

    window = steady_window([request(0, 10), request(2, 20)])
    assert (window.begin_s, window.end_s) == (2, 10)  # the mean in flight is 1.4
    assert window.tokens == 9 + 8 and window.tokens_per_s == pytest.approx(17 / 8)
    assert steady_window([]) is None


# What may be said of it


def test_floors_and_bounds_are_those_of_the_binomial_distribution():
    assert (min_samples(0.5), min_samples(0.9), min_samples(0.99)) == (1, 64, 662)
    values = list(range(10_000))
    assert upper_bound(values, 0.99) == sorted(values)[-77]
    assert (upper_bound(range(661), 0.99), upper_bound(range(662), 0.99)) == (None, 661)
    assert (tail(range(661), 0.99), tail(range(662), 0.99)) == (None, percentile(range(662), 0.99))


def test_a_bound_holds_about_as_often_as_it_says():
    import random

    draw = random.Random(5)
    true = -math.log(0.1)  # the 90th percentile of the exponential distribution
    held = sum(upper_bound([draw.expovariate(1) for _ in range(200)], 0.9) >= true for _ in range(2000))
    assert 0.985 <= held / 2000 <= 1.0


def test_intervals_of_means():
    mean, (low, high) = mean_interval([10.0, 12.0, 14.0])
    half = 4.303 * 2 / math.sqrt(3)  # Student's t of two degrees of freedom
    assert (mean, low, high) == (12.0, pytest.approx(12 - half, rel=1e-3), pytest.approx(12 + half, rel=1e-3))
    assert mean_interval([3.0]) == (3.0, None)


def test_runs_of_the_same_level_belong_together():
    rows = [summarize(LevelResult(clients, [answered()] * 4, wall_s=wall)) for wall in (1.0, 2.0) for clients in (1, 8)]
    figures = {(one.label, one.figure): one for one in Repeated.of(rows, GENERATED)}
    rate = figures["8", "answered per s"]
    assert (rate.runs, rate.mean) == (2, 3.0) and rate.interval[0] < 3.0 < rate.interval[1]
    assert figures["1", "TTFT P50 ms"].spread == 0.0


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft<5", "foo<5ms", "ttft_p0<5ms", "ttft<0ms", "ttft_p100<5ms", "ttft<5ms,"]
)
def test_bad_slo(text):
    with pytest.raises(InvalidInputError, match="--slo"):
        parse_slo(text)


def test_promises_kept_by_each_and_by_a_run():
    slo = parse_slo("ttft<150ms, tpot<30ms")
    assert str(slo) == "ttft<150ms,tpot<30ms"
    assert slo.is_met_by(answered()) and not slo.is_met_by(answered(lag=0.1))  # late is late, whoever's fault
    assert not slo.is_met_by(answered(gaps=(0.05, 0.05)))
    assert not parse_slo("tpot<50ms").is_met_by(answered(gaps=(), tokens=1))  # one token: its 100 ms stand in
    run = parse_slo("ttft_p90<150ms")
    nine = [answered()] * 9
    assert run.broken_by([*nine, answered(ttft=9.0)]) == []
    assert run.broken_by([*nine, answered(ttft=9.0), answered(ttft=9.0)]) == ["ttft_p90<150ms: 9000 ms"]
    refused = Outcome(0, None, None, 1, status=503, error="HTTP 503: full")
    assert run.broken_by([*nine, refused, refused]) == ["ttft_p90<150ms: no answer"]
    assert run.broken_by([]) == ["ttft_p90<150ms: no answer"]


def test_the_search_ends_with_a_bracket():
    search = Search()
    find_max(lambda rate: Probe(rate, () if rate <= 13.7 else ("ttft",)), 1.0, search)
    assert search.held.rate <= 13.7 < search.broken.rate <= 1.1 * search.held.rate
    assert len(search.probes) < 12 and "13." in search.verdict()
    low = Search()
    find_max(lambda rate: Probe(rate, () if rate <= 0.3 else ("ttft",)), 1.0, low)
    assert low.held.rate <= 0.3 < low.broken.rate
    never = Search()
    find_max(lambda rate: Probe(rate, ("ttft",)), 1.0, never)
    assert never.held is None and "no rate" in never.verdict() and len(never.probes) == 5


def test_a_server_that_falls_behind_does_not_hold_the_rate():
    slo = parse_slo("e2e_p99<100s")
    even = [answered(due=float(at)) for at in range(30)]
    behind = [answered(due=float(at), ttft=0.1 + at) for at in range(30)]
    assert judge(slo, even) == ()
    assert "falls behind" in judge(slo, behind)[0]
    for outcomes, said in ((even, False), (behind, True)):
        open_row = summarize(LevelResult(3, outcomes, 30.0, offered_per_s=1.0))
        assert any("1/s: the server falls behind" in line for line in notes([open_row])) == said
        assert summarize(LevelResult(3, outcomes, 30.0)).saturated is None  # clients that wait are no measure of it


def test_tables_say_what_there_is_too_little_of():
    slo = parse_slo("e2e<1s")
    rows = [summarize(LevelResult(2, [answered(due=float(at)) for at in range(70)], 70.0, offered_per_s=1.0), slo)]
    ms = pytest.approx(100)
    assert rows[0].ttft == Latency(70, ms, ms, ms, None, None, ms, (ms, ms))
    table = latency_table(rows)
    assert "due" in str(table.title) and [*table.columns[3].cells] == ["–"]
    assert "662" in notes(rows)[0]
    assert [*load_table(rows, "t", slo=slo).columns[2].cells] == ["1.00"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": "5", "concurrency": "8"}, "give one"),
        ({"max_in_flight": 3}, "--max-in-flight goes with --rate"),
        ({"find_max": True}, "needs --slo"),
        ({"find_max": True, "slo": "ttft<1s", "rate": "3"}, "chooses the rates itself"),
        ({"endpoint": "infer"}, "name one"),
        ({"repeat": 0}, "--repeat"),
        ({"duration": math.nan}, "--duration"),
        ({"url": "http://x", "serve_args": "-v"}, "--serve-args"),
        ({"arrivals": "sometimes"}, "--arrivals"),
        ({"concurrency": "0"}, "--concurrency"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_starts(options, says):
    with pytest.raises(InvalidInputError, match=says):
        BenchOptions(**options)
