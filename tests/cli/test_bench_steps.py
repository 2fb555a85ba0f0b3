"""Rates that change: ramps, steps and spikes, when requests are due and what is said of each part."""

import json

import pytest

from aie.bench.arrivals import Arrivals, Rate, Step, parse_rates
from aie.bench.by_step import by_step, parts_of, step_cells, steps_table
from aie.bench.client import Outcome
from aie.bench.curve import curve
from aie.bench.load import LevelResult
from aie.bench.notes import notes
from aie.bench.pages import html, markdown
from aie.bench.recorded import level_label
from aie.bench.report import summarize
from aie_engine import InvalidInputError

SPIKE = "2x30s,20x10s,2x30s"


def test_steps_as_people_write_them():
    assert parse_rates("5,1,5") == [Rate(5, 5), Rate(1, 1)]
    [rate] = parse_rates(SPIKE)
    assert rate.steps == (Step(2, 2, 30), Step(20, 20, 10), Step(2, 2, 30))
    assert (rate.seconds, rate.mean, str(rate)) == (70.0, pytest.approx(320 / 70), SPIKE)
    [ramp] = parse_rates("1x2.5s, 1-10×20s ,0x5s")
    assert ramp.steps == (Step(1, 1, 2.5), Step(1, 10, 20), Step(0, 0, 5))
    assert not ramp.is_constant and not rate.is_constant and Rate(2, 2).is_constant and not Rate(2, 3).is_constant
    assert parse_rates("5x10s")[0].is_constant and parse_rates("5")[0].seconds is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2x30s,5", "all must"),
        ("5,2x30s", "all must"),
        ("0x30s", "at least one of them"),
        ("5x0s", "some time"),
        ("5x1e3s", "give requests per second"),
        ("5x30", "give requests per second"),
        ("-1x30s", "give requests per second"),
        ("nanx30s", "give requests per second"),
        ("x30s", "give requests per second"),
        ("5x9999999s", "some time"),
    ],
)
def test_bad_steps(text, says):
    with pytest.raises(InvalidInputError, match=says):
        parse_rates(text)


def test_each_step_has_its_rate():
    due = Arrivals(parse_rates(SPIKE)[0], "constant").schedule(70.0, 0)
    counts = [sum(begin <= at < end for at in due) for begin, end in ((0, 30), (30, 40), (40, 70))]
    assert counts == [60, 200, 60] and due == sorted(due)
    assert due[60] == 30.0 and due[61] == pytest.approx(30.05) and due[260] == 40.0
    assert Arrivals(parse_rates("0x10s,1x5s")[0], "constant").schedule(15.0, 0) == [10, 11, 12, 13, 14]


def test_chance_is_not_rescaled_at_a_step():
    """Time is stretched and nothing else: the same draws come, at twice the pace, and how many there are is chance."""
    even = Arrivals(Rate(1, 1)).schedule(1000.0, 7)
    stepped = Arrivals(parse_rates("1x100s,2x450s")[0]).schedule(550.0, 7)
    expected = [at if at < 100 else 100 + (at - 100) / 2 for at in even]
    assert stepped == pytest.approx(expected)
    counts = {len(Arrivals(parse_rates("5x20s,10x20s")[0]).schedule(40.0, seed)) for seed in range(8)}
    assert len(counts) > 4 and all(abs(count - 300) < 5 * 300**0.5 for count in counts)


def test_a_ramp_within_steps():
    due = Arrivals(parse_rates("0-10x10s,10x10s")[0], "constant").schedule(20.0, 0)
    assert sum(at < 10 for at in due) == pytest.approx(50, abs=1)
    assert sum(at >= 10 for at in due) == pytest.approx(100, abs=1)


def outcome(due, e2e, *, ttft=0.1, error=None):
    return Outcome(due, due + ttft, due + e2e, due + e2e, 5, 5, 200, error, [], due, due + ttft)


def test_a_request_belongs_to_the_part_in_which_it_was_due():
    parts = parts_of(parse_rates("1x10s,3x10s")[0], 20.0)
    outcomes = [outcome(100.0 + at, 1.0) for at in range(10)]  # the last ends when the first step does
    outcomes += [outcome(110.0 + at / 3, 15.0, ttft=14.0) for at in range(29)]
    outcomes.append(outcome(119.9, 5.0, error="HTTP 503"))
    first, second = by_step(parts, outcomes, 100.0)
    assert (first.rate, first.begin_s, first.end_s, first.requests, first.answered) == ("1", 0, 10, 10, 10)
    assert (first.answered_per_s, first.open_at_end, first.ttft_p50) == (0.9, 1, pytest.approx(100))
    assert (second.rate, second.requests, second.answered, second.open_at_end) == ("3", 30, 29, 30)
    assert second.answered_per_s == 0.1 and second.ttft_p50 == pytest.approx(14_000) and second.ttft_p99 is None
    assert second.e2e_max == pytest.approx(15_000)
    assert by_step(parts, outcomes[:9], 100.0) == (by_step(parts, outcomes[:9], 100.0)[0],)  # it ended before


def test_a_ramp_is_told_in_five_parts():
    parts = parts_of(Rate(0, 10), 20.0)
    assert parts == tuple(Step(2.0 * n, 2.0 * (n + 1), 4.0) for n in range(5))
    assert parts_of(Rate(5, 5), 20.0) == () and parts_of(parse_rates("5x3s")[0], 3.0) == ()
    assert [one.rate for one in by_step(parts, [outcome(0.0, 20.0)], 0.0)][:2] == ["0-2", "2-4"]


def test_the_table_has_a_row_for_each():
    from dataclasses import asdict

    steps = [asdict(one) for one in by_step(parts_of(Rate(0, 10), 20.0), [outcome(0.0, 20.0)], 0.0)]
    table = steps_table([("x", steps), ("y", ())])
    assert len(table.rows) == 5 and [*table.columns[0].cells] == ["x"] * 5
    assert step_cells(steps[0])[:3] == ["0", "4", "0-2/s"] and step_cells(steps[1])[-1] == "–"
    assert steps_table([("x", ())]) is None


def document_of(rows):
    return {"model": "m", "url": "u", "endpoint": "chat", "lengths": "fixed", "context": {}, "complete": True,
            "levels": [json.loads(json.dumps(row.as_json())) for row in rows]}  # fmt: skip


def test_reports_show_each_part():
    outcomes = [outcome(float(at), 0.5 + at) for at in range(20)]
    rate = parse_rates("1x10s,3x10s")[0]
    result = LevelResult(3, outcomes, 40.0, offered_per_s=2.0, rate=str(rate), steps=parts_of(rate, 20.0))
    row = summarize(result)
    assert row.label == row.name == level_label(row.as_json()) == "1x10s,3x10s" and len(row.steps) == 2
    assert not any("falls behind" in line for line in notes([row]))  # the rate grew, and so may what is waited for
    for page in (html(document_of([row])), markdown(document_of([row]))):
        assert "As the rate changed" in page and "3/s" in page and "14500" in page


def test_the_curve_goes_from_the_least_load_to_the_most():
    rates = (4.0, 1.0, 2.0)
    rows = [summarize(LevelResult(1, [outcome(0.0, 1.0)] * 8, 8.0 / rate, offered_per_s=rate)) for rate in rates]
    _, points = curve(document_of(rows))
    assert [point.label for point in points] == ["1 requests/s", "2 requests/s", "4 requests/s"]
