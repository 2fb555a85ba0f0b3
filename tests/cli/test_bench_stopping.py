"""Levels that are ended early, levels that are left out, and searches: against servers that are scripted."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from aie.bench import probing, streaming_levels
from aie.bench.arrivals import Rate, parse_rates
from aie.bench.early_stop import EarlyStop
from aie.bench.find_max import Probe, Search, find_max
from aie.bench.generator import STOPPED, Call, Conversation, Open, Outcome, Plan
from aie.bench.load import LevelResult, Sampler, calls_of
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.pages import html, markdown
from aie.bench.progress import Progress
from aie.bench.report import load_table, summarize
from aie.bench.slo import parse_slo
from aie.bench.streaming import StreamingReport
from aie.bench.streaming_plan import Level, Traffic, open_level
from aie.bench.watched import at_rest, run_watched
from aie_engine import InvalidInputError


def watched(scripted, answer, due, *, slo="ttft<1s", max_in_flight=None, calls=None):
    """A level whose promise cannot be kept, so that the first look of the watcher ends it."""
    limit = parse_slo(slo).limits[0]
    stop = EarlyStop(due, len(due), replace(parse_slo(slo), limits=(replace(limit, limit_s=1e-9),)))

    async def run():
        async with scripted(answer) as server:
            plan = Plan(server.endpoint, calls or [Call("/x", b"{}")] * len(due), Open(due, max_in_flight), 30.0)
            sampler = Sampler(server.endpoint, None, lambda: None)
            return await run_watched(plan, stop, sampler=sampler, progress=Progress("x", 9, ui="none"), fleet=None)

    return asyncio.run(run())


def answering(scripted, count):
    """Answers so many requests; all others have to wait for ever."""
    answered = []

    async def answer(asked, writer):
        if asked.method == "GET":
            return
        answered.append(asked)
        writer.write(scripted.HEAD + scripted.text())
        if len(answered) <= count:
            writer.write(scripted.usage(1) + scripted.END)
            return
        await writer.drain()
        await asyncio.Event().wait()

    return answer


def test_who_is_open_when_a_level_is_stopped_waited_for_so_long_and_is_no_failure(scripted):
    result = watched(scripted, answering(scripted, 1), [0.0, 0.0, 0.0, 1000.0])
    assert sorted(one.kind for one in result.outcomes) == ["answered", "stopped", "stopped"]
    assert "ttft<1e-06ms is broken" in result.stopped and result.wall_s < 100 and result.unsent == 0
    row = summarize(replace(result, offered_per_s=3.0), parse_slo("ttft<1s"))
    assert (row.requests, row.answered, row.failed, row.ends["stopped"], row.good) == (3, 1, 0, 2, 1)
    assert (row.ttft.count, row.e2e.count, row.tpot.count, row.errors) == (3, 3, 0, {})
    assert row.due_e2e.p50 >= row.due_ttft.p50
    [line] = [line for line in notes([row]) if "stopped after" in line]
    assert (
        line.startswith("3/s: stopped after") and "2 requests were still open; TTFT and E2E count what they had" in line
    )
    assert [*load_table([row], "t").columns[-1].cells] == ["stopped"]


def test_who_waited_for_the_cap_is_counted(scripted):
    result = watched(scripted, answering(scripted, 0), [0.0] * 5, max_in_flight=2)
    assert len(result.outcomes) == 2 and result.unsent == 3
    row = summarize(replace(result, offered_per_s=5.0))
    assert any("and 3 were due and not sent" in line for line in notes([row]))


def test_a_run_that_ends_by_itself_is_whole(scripted):
    stop = EarlyStop([0.0], 1, parse_slo("ttft<1000s"))

    async def run():
        async with scripted(answering(scripted, 9)) as server:
            plan = Plan(server.endpoint, [Call("/x", b"{}")], Open([0.0]), 30.0)
            sampler = Sampler(server.endpoint, None, lambda: None)
            return await run_watched(plan, stop, sampler=sampler, progress=Progress("x", 9, ui="none"), fleet=None)

    result = asyncio.run(run())
    assert result.stopped is None and [one.kind for one in result.outcomes] == ["answered"]


def test_the_next_level_waits_until_the_server_rests(scripted):
    running = [3, 1, 0]

    async def answer(asked, writer):
        text = "# HELP vllm:x x\n" + "".join(
            f'vllm:num_requests_{name}{{model_name="m"}} {value}\n'
            for name, value in (("running", running.pop(0)), ("waiting", 0))
        )
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + text.encode())

    async def wait(sampler_of):
        async with scripted(answer) as server:
            return await at_rest(Sampler(server.endpoint, sampler_of, lambda: None))

    assert asyncio.run(wait("m")) is True and running == []
    assert asyncio.run(wait(None)) is None


@pytest.mark.parametrize(
    ("rates", "saturated_at", "run", "left"),
    [
        ("1,2,5,20", 2.0, ["1", "2"], ["5", "20"]),
        ("20,1,30", 20.0, ["20", "1"], ["30"]),
        ("5,1-20", 5.0, ["5", "1-20"], []),
        ("1,2", None, ["1", "2"], []),
    ],
)
def test_rates_above_one_that_saturates_are_left_out(monkeypatch, rates, saturated_at, run, left):
    seen = []

    def fake(target, level, traffic, results, ui, *, stop):
        seen.append(str(level.rate))
        assert (stop is not None) == level.rate.is_constant
        is_over = level.rate.mean == saturated_at
        results.append(LevelResult(1, [], 1.0, stopped="saturated" if is_over else None))

    monkeypatch.setattr(streaming_levels, "run_streaming_level", fake)
    monkeypatch.setattr(streaming_levels, "warm_up", lambda *_: None)
    traffic = Traffic((4, 4), (4, 4))
    levels = [
        open_level(traffic, rate, kind="constant", burstiness=1.0, requests=None, duration_s=2.0, max_in_flight=None)
        for rate in parse_rates(rates)
    ]
    not_run = streaming_levels.run_streaming_levels(None, levels, traffic, [], "none", stops=True)
    assert seen == run and not_run == [f"{rate} requests/s" for rate in left]


def test_a_report_says_what_was_not_run():
    report = StreamingReport(not_run=["40 requests/s", "40 requests/s"])
    assert report.as_json()["not_run"] == ["40 requests/s"]
    assert any("saturated the server: 40 requests/s. --no-stop" in line for line in report.as_json()["notes"])


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        ({"rate": "5"}, False),
        ({"rate": "5,10"}, True),
        ({"rate": "5,10", "stop": False}, False),
        ({"rate": "5", "stop": True}, True),
        ({"find_max": True, "slo": "ttft<1s"}, True),
        ({"find_max": True, "slo": "ttft<1s", "stop": False}, False),
        ({"concurrency": "5"}, False),
    ],
)
def test_when_a_level_may_be_stopped(options, stops):
    assert BenchOptions(**options).stops is stops


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stop": True}, "give --rate or --find-max"),
        ({"stop": False, "concurrency": "3"}, "give --rate or --find-max"),
        ({"rate": "1x5s,2x5s", "duration": 3.0}, "leave --duration and --requests out"),
        ({"rate": "1x5s,2x5s", "requests": 3}, "leave --duration and --requests out"),
    ],
)
def test_flags_that_contradict_each_other(options, says):
    with pytest.raises(InvalidInputError, match=says):
        BenchOptions(**options)


# Searches


def outcome(due=0.0, ttft=0.1, error=None, status=200):
    return Outcome(due, due + ttft, due + ttft, due + ttft, 5, 1, status, error, [], due, due + ttft)


def test_a_probe_tells_what_it_measured():
    slo = parse_slo("ttft_p99<500ms,e2e_p50<1s")
    held = Probe.of(2.0, slo, [outcome()] * 20, 10.0)
    assert held.is_held and (held.requests, held.seconds, held.is_stopped) == (20, 10.0, False)
    assert held.measured == (("ttft_p99<500ms", pytest.approx(100)), ("e2e_p50<1000ms", pytest.approx(100)))
    slow = Probe.of(2.0, slo, [outcome(ttft=3.0)] * 20, 10.0)
    assert slow.broken == ("ttft_p99<500ms: 3000 ms", "e2e_p50<1000ms: 3000 ms")
    refused = Probe.of(2.0, slo, [outcome(error="HTTP 503", status=503)] * 20, 10.0)
    assert refused.measured[0][1] is None and refused.broken[0] == "ttft_p99<500ms: no answer" and not refused.is_dead
    stopped = Probe.of(2.0, slo, [outcome()] * 20, 3.0, "saturated: …")
    assert stopped.broken == ("saturated: …",) and stopped.is_stopped


def test_where_every_request_fails_no_lower_rate_is_tried():
    failed = [outcome(error="HTTP 500: oops", status=500)] * 3
    search = Search()
    find_max(lambda rate: Probe.of(rate, parse_slo("ttft<1s"), failed, 1.0, "ttft<1000ms is broken"), 4.0, search)
    assert len(search.probes) == 1 and "every request failed: HTTP 500: oops (1 probe)" in search.verdict()
    assert StreamingReport(search=search).failed


def test_what_was_open_at_the_stop_waited_for_so_long():
    slo = parse_slo("ttft_p99<500ms,tpot_p99<50ms,e2e_p99<9s")
    still = Outcome(0.0, 2.0, 2.2, 3.0, 0, 0, 200, STOPPED, [0.1, 0.1], 0.0, 2.0)
    silent = Outcome(0.0, None, None, 3.0, 0, 0, 0, STOPPED, [], 0.0)
    assert slo.measured([still]) == [pytest.approx(2.0), pytest.approx(0.1), pytest.approx(3.0)]
    assert slo.measured([silent]) == [pytest.approx(3.0), 0.0, pytest.approx(3.0)]
    assert not slo.is_met_by(still)


def test_a_search_tells_how_precise_it_is_and_of_how_few_requests():
    search = Search()
    find_max(lambda rate: Probe(rate, () if rate <= 13.7 else ("ttft",), requests=70), 1.0, search)
    assert all(float(f"{one.rate:.3g}") == one.rate for one in search.probes)
    assert search.precision == pytest.approx(search.broken.rate / search.held.rate - 1) and 0 < search.precision < 0.1
    assert f"({len(search.probes)} probes, known within {search.precision:.0%})" in search.verdict()
    [line] = search.remarks(parse_slo("ttft_p99<1s,tpot_p90<1s,e2e<9s"))
    assert "held by 70 requests: too few to speak of P99, which takes 662" in line
    found = json.loads(json.dumps(search.as_json()))
    assert found["precision"] == search.precision and len(found["probes"]) == len(search.probes)
    assert Search().precision is None and Search().remarks(parse_slo("ttft_p99<1s")) == []
    one = Search("conversations/s", [Probe(1.0, ())])
    assert one.verdict() == "at least 1 conversations/s; higher rates were not tried (1 probe)"


def test_probes_are_run_until_nothing_can_change(monkeypatch):
    """A server that holds up to 6 a second; a probe beyond is stopped."""
    stops = []

    def fake(target, level, traffic, results, ui, *, stop):
        stops.append(stop)
        per_s = level.rate.mean
        result = LevelResult(1, [outcome(float(at)) for at in range(20)], 20.0, offered_per_s=per_s)
        result.stopped = "saturated: …" if per_s > 6 else None
        results.append(result)

    monkeypatch.setattr(probing, "run_streaming_level", fake)
    monkeypatch.setattr(probing, "warm_up", lambda *_: None)
    options = BenchOptions(find_max=True, slo="ttft_p90<1s", ui="none", duration=9.0)
    report = StreamingReport(options.promise, search=Search())
    probing.run_search(None, options, Traffic((4, 4), (4, 4)), report.search, report.slo, report.results)
    assert report.search.held.rate <= 6 < report.search.broken.rate and report.search.broken.is_stopped
    assert all(stop.slo == options.promise and stop.planned == len(stop.due) for stop in stops)
    head = {"model": "m", "url": "u", "endpoint": "completions", "lengths": "uniform", "context": {}}
    document = json.loads(json.dumps({**head, **report.as_json()}))
    for page in (html(document), markdown(document)):
        assert "Probes of the search" in page and "stopped early" in page and "ttft_p90" in page
        assert "known within" in page and page.count("saturated: …") >= 2
    options = BenchOptions(find_max=True, slo="ttft_p90<1s", ui="none", stop=False)
    stops.clear()
    probing.run_search(None, options, Traffic((4, 4), (4, 4)), Search(), report.slo, [])
    assert set(stops) == {None}


# Conversations in the open loop


def test_conversations_begin_at_the_rate_and_their_later_turns_are_due_after_answers(scripted):
    traffic = Traffic((4, 4), (4, 4), chat=True, turns=3, think_s=0.02)
    level = open_level(traffic, Rate(50, 50), kind="constant", burstiness=1.0, requests=7, duration_s=None,
                       max_in_flight=None)  # fmt: skip
    assert len(level.due) == 3 and level.num_requests == 9 and level.until_s >= level.due[-1]
    calls = calls_of(level.requests, "m", chat=True, think_s=0.02)
    assert all(isinstance(call, Conversation) and len(call.turns) == 3 for call in calls)

    async def answer(asked, writer):
        writer.write(scripted.HEAD + scripted.event({"choices": [{"delta": {"content": "a"}}]}))
        writer.write(scripted.usage(1) + scripted.END)

    async def run():
        async with scripted(answer) as server:
            plan = Plan(server.endpoint, calls, Open(level.due), 30.0)
            sampler = Sampler(server.endpoint, None, lambda: None)
            stop = EarlyStop(level.due, 9)
            return await run_watched(plan, stop, sampler=sampler, progress=Progress("x", 9, ui="none"), fleet=None)

    result = asyncio.run(run())
    assert len(result.outcomes) == 9 and result.stopped is None
    talks = {}
    for one in sorted(result.outcomes, key=lambda one: one.turn):
        talks.setdefault(one.session, []).append(one)
    for turns in talks.values():
        assert [one.turn for one in turns] == [0, 1, 2]
        for before, after in pairwise(turns):
            assert after.due_s - before.end_s == pytest.approx(0.02, abs=0.02) and after.lag_s >= 0
    starts = sorted(turns[0].due_s - result.start_s for turns in talks.values())
    assert starts == pytest.approx(level.due, abs=1e-6)


def test_a_level_knows_its_steps():
    traffic = Traffic((4, 4), (4, 4))

    def level(text) -> Level:
        return open_level(traffic, parse_rates(text)[0], kind="constant", burstiness=1.0, requests=None,
                          duration_s=None, max_in_flight=None)  # fmt: skip

    assert level("2x3s,9x2s").until_s == 5.0 and len(level("2x3s,9x2s").requests) == 24
    assert level("2x3s,9x2s").rate_label == "2x3s,9x2s" and level("1-3").rate_label == "1-3/s"
    assert level("5").rate_label is None and level("5").steps == ()


# Whose fault it is


@pytest.mark.parametrize(
    ("lags", "is_bound"),
    [
        ([0.001] * 10, False),
        ([0.001] * 9 + [0.5], True),
        ([0.001] * 99 + [0.5], False),
        ([0.5] * 20 + [0.001] * 80, True),
    ],
)
def test_one_of_many_that_was_late_makes_no_test_client_bound(lags, is_bound):
    outcomes = []
    for number, lag in enumerate(lags):
        one = outcome(float(number) + lag)
        one.due_s = float(number)
        outcomes.append(one)
    row = summarize(LevelResult(1, outcomes, 100.0, offered_per_s=1.0))
    assert row.is_client_bound is row.as_json()["client_bound"] is is_bound
    assert any("client-bound" in line for line in notes([row])) is is_bound
