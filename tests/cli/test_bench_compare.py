"""Two reports of the load test: when a difference is shown, when it is not, and when the files are of no use."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.client import Outcome
from aie.bench.compare import _fails_more, compare_reports
from aie.bench.load import LevelResult
from aie.bench.recorded import read_report
from aie.bench.report import summarize
from aie.bench.statistics import chance_of_failures, difference_interval, median_interval
from aie.bench.student import student_quantile
from aie_engine import InvalidInputError


def outcomes(ttft, count=40, spread=0.0, seed=0):
    draw = random.Random(seed)
    made = []
    for number in range(count):
        first = number + ttft * (1 + spread * (draw.random() - 0.5))
        made.append(Outcome(number, first, first + 0.4, first + 0.4, 10, 5, 200, None, [0.1] * 4, None, first))
    return made


def report(path: Path, ttfts, clients=(2,), spread=0.0, **changed):
    """One run for each of `ttfts`, in seconds."""
    levels = [
        summarize(LevelResult(number, outcomes(ttft, spread=spread), wall_s=40.0 * ttft)).as_json()
        for ttft in ttfts
        for number in clients
    ]
    document = {"format": 3, "endpoint": "completions", "lengths": "uniform", "test": {"seed": 0}, "complete": True}
    path.write_text(json.dumps({**document, "levels": levels, **changed}))
    return path


@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [
        (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 5, 2.571), (0.95, 10, 2.228), (0.95, 30, 2.042),
        (0.95, 120, 1.980), (0.95, 1e6, 1.960), (0.90, 7, 1.895), (0.98, 15, 2.602), (0.99, 1, 63.657),
        (0.99, 4, 4.604), (0.99, 10, 3.169), (0.99, 29, 2.756), (0.999, 5, 6.869), (0.999, 30, 3.646), (0.5, 2, 0.816),
    ],
)  # fmt: skip
def test_student(confidence, degrees, t):
    assert student_quantile(confidence, degrees) == pytest.approx(t, abs=6e-4)


def test_welch():
    # The example of two samples of unequal spread: t·s of 5.26 degrees of freedom.
    before, after = [10.0, 12.0, 14.0], [20.0, 21.0, 22.0, 23.0]
    low, high = difference_interval(before, after, 0.95)
    parts = 4 / 3, (5 / 3) / 4
    degrees = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3)
    half = student_quantile(0.95, degrees) * sum(parts) ** 0.5
    assert (low, high) == (pytest.approx(9.5 - half), pytest.approx(9.5 + half))
    assert difference_interval([1.0], after, 0.95) is None
    assert difference_interval([1.0, 1.0], [2.0, 2.0], 0.95) == (1.0, 1.0)


def test_the_median_lies_in_its_interval_as_often_as_it_says():
    draw = random.Random(3)
    held = 0
    for _ in range(1000):
        low, high = median_interval([draw.random() for _ in range(30)])
        held += low <= 0.5 <= high
    assert held >= 985
    assert median_interval(range(11)) is None and median_interval(range(12)) is not None


def test_several_runs_show_what_they_can(tmp_path):
    a = read_report(report(tmp_path / "a", [1.00, 1.01, 0.99, 1.0]))
    slower = compare_reports(a, read_report(report(tmp_path / "b", [1.20, 1.21, 1.19, 1.2])))
    verdicts = {one.name: one.verdict for one in slower.figures}
    assert verdicts == {"answered": "slower", "tokens": "slower", "TTFT P50": "slower", "E2E P50": "slower",
                        "TPOT P50": "no difference shown"}  # fmt: skip
    assert slower.is_slower and slower.verdict == "slower" and slower.runs == 4
    ttft = next(one for one in slower.figures if one.name == "TTFT P50")
    assert ttft.change == pytest.approx(0.2) and ttft.interval[0] < 0.2 < ttft.interval[1]
    faster = compare_reports(read_report(tmp_path / "b"), a)
    assert not faster.is_slower and faster.verdict == "faster"
    noisy = compare_reports(a, read_report(report(tmp_path / "c", [0.8, 1.5, 0.9, 1.3])))
    assert noisy.verdict == "no difference shown"


def test_the_same_server_is_seldom_called_slower(tmp_path):
    draw = random.Random(11)
    alarms = 0
    for _ in range(100):
        sides = []
        for name in "ab":
            document = {"format": 3, "endpoint": "completions", "levels": []}
            for run in range(5 * 3):
                level = {"concurrency": 2 ** (run % 3), "requests": 9, "answered": 9, "failed": 0}
                level |= {key: draw.gauss(100, 5) for key in ("requests_per_s", "output_tokens_per_s")}
                level |= {key: {"p50": draw.gauss(100, 5)} for key in ("ttft", "tpot", "e2e")}
                document["levels"].append(level)
            (tmp_path / name).write_text(json.dumps(document))
            sides.append(read_report(tmp_path / name))
        alarms += compare_reports(*sides).verdict != "no difference shown"
    assert alarms <= 10  # five are promised


def test_single_runs_are_judged_by_their_medians_alone(tmp_path):
    a, b, c = (
        read_report(report(tmp_path / name, [ttft], spread=0.2)) for name, ttft in (("a", 1.0), ("b", 1.5), ("c", 1.01))
    )
    found = compare_reports(a, b)
    assert found.runs == 1
    assert {one.name: one.verdict for one in found.figures}["TTFT P50"] == "slower"
    assert {one.name: one.verdict for one in found.figures}["answered"] == "not judged"
    assert compare_reports(a, c).verdict == "no difference shown"


@pytest.mark.parametrize(("failed", "is_shown"), [(0, False), (2, False), (8, True), (20, True)])
def test_a_server_that_fails_more_is_not_as_good(tmp_path, failed, is_shown):
    runs = [outcomes(1.0) for _ in range(2)]
    for run in runs:
        for one in run[: failed // 2]:
            one.status, one.error = 429, "HTTP 429"
    levels = [summarize(LevelResult(2, run, wall_s=40.0)).as_json() for run in runs]
    a, b = report(tmp_path / "a", [1.0, 1.0]), report(tmp_path / "b", [], levels=levels)
    found = compare_reports(read_report(a), read_report(b))
    assert (found.failing == ("2 clients",)) == is_shown == ("more requests fail at 2 clients" in found.verdict)
    assert not compare_reports(read_report(b), read_report(a)).failing
    run = CliRunner().invoke(app, ["bench", "compare", str(a), str(b)])
    assert run.exit_code == 1 or not is_shown


def test_a_level_at_which_nothing_is_answered_any_more_is_worse_however_few_the_requests():
    assert _fails_more((0, 4), (4, 4), 3)
    for before, after in (((4, 4), (4, 4)), ((0, 4), (3, 4)), ((0, 4), (0, 0))):
        assert not _fails_more(before, after, 1)


def test_the_chance_of_failures_is_that_of_the_hypergeometric_distribution():
    # Of 8 cups 4 are of one kind: one way in 70 to have all of them, 17 to have three or four.
    assert chance_of_failures((0, 4), (4, 4)) == pytest.approx(1 / 70)
    assert chance_of_failures((1, 4), (3, 4)) == pytest.approx(17 / 70)
    assert chance_of_failures((0, 9), (0, 5)) == pytest.approx(1.0)
    assert chance_of_failures((5, 5), (5, 5)) == pytest.approx(1.0)


def test_the_command_and_its_exit_codes(tmp_path):
    a, b = report(tmp_path / "a.json", [1.0, 1.01], (2, 8)), report(tmp_path / "b.json", [2.0, 2.01], (8, 16))
    run = CliRunner().invoke(app, ["bench", "compare", str(a), str(b), "--json", str(tmp_path / "out.json")])
    assert run.exit_code == 1 and "Verdict: slower" in run.output and "Only in A: 2 clients." in run.output
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "slower"
    same = CliRunner().invoke(app, ["bench", "compare", str(a), str(a)])
    assert same.exit_code == 0 and "no difference shown" in same.output
    single = report(tmp_path / "c.json", [1.0])
    assert "--repeat 5" in CliRunner().invoke(app, ["bench", "compare", str(single), str(single)]).output
    assert "no report" in CliRunner().invoke(app, ["bench", "compare", "--help"]).output


def test_a_level_that_was_stopped_early_is_not_judged(tmp_path):
    a, b = report(tmp_path / "a", [1.0, 1.01], (2, 8)), report(tmp_path / "b", [2.0, 2.01], (2, 8))
    document = json.loads(b.read_text())
    for level in document["levels"]:
        level["stopped"] = "saturated: …" if level["concurrency"] == 8 else None
    b.write_text(json.dumps(document))
    found = compare_reports(read_report(a), read_report(b))
    assert {one.level for one in found.figures} == {"2 clients"} and found.is_slower
    assert any("B was stopped early at 8 clients" in line for line in found.remarks)


def test_files_that_cannot_be_compared_are_wrong_input(tmp_path):
    a, b = report(tmp_path / "a", [1.0]), report(tmp_path / "b", [1.0], endpoint="chat")
    for one, other in ((a, b), (a, tmp_path / "missing")):
        run = CliRunner().invoke(app, ["bench", "compare", str(one), str(other)])
        assert isinstance(run.exception, InvalidInputError) and run.exception.exit_code == 2


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((4.0, 4.4), (4.2, 4.5), "no difference shown"),
        ((4.0, 4.4), (4.4, 4.8), "faster"),
        ((4.0, 4.4), (3.0, 3.2), "slower"),
        ((4.0, None), (5.0, None), "no difference shown"),  # neither was driven to its end
        ((None, 0.1), (1.0, 1.1), "faster"),
        ((None, 0.1), (None, 0.2), "no difference shown"),
    ],
)
def test_two_searches_differ_where_their_brackets_do(tmp_path, a, b, verdict):
    sides = [
        read_report(report(tmp_path / name, [1.0], find_max={"held_per_s": held, "broken_per_s": broken}))
        for name, (held, broken) in (("a", a), ("b", b))
    ]
    assert compare_reports(*sides).verdict == verdict
    json.dumps([one.interval for one in compare_reports(*sides).figures], allow_nan=False)
    run = CliRunner().invoke(app, ["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert run.exit_code == (verdict == "slower") and "bracket" in run.output and "Only in" not in run.output
    with pytest.raises(InvalidInputError, match="--find-max is true"):
        compare_reports(sides[0], read_report(report(tmp_path / "c", [1.0])))


def test_what_went_wrong_is_said(tmp_path):
    a, b = report(tmp_path / "a", [1.0]), report(tmp_path / "b", [1.0], complete=False)
    document = json.loads(b.read_text())
    document["levels"][0] |= {"requests": 50, "failed": 10}
    b.write_text(json.dumps(document))
    remarks = " ".join(compare_reports(read_report(a), read_report(b)).remarks)
    assert "B was interrupted" in remarks and "10 of 50 requests failed" in remarks


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"endpoint": "chat"}, "endpoint is"),
        ({"test": {"seed": 0, "output_tokens": [5, 9]}}, "output_tokens is not given in .* and \\[5, 9\\]"),
        ({"levels": []}, "No level is in both"),
        ({"format": 1}, "format 1"),
        ({"levels": [{"concurrency": 2}]}, "without its figures"),
        ({"levels": 3}, "no report"),
    ],
)
def test_files_of_no_use(tmp_path, changed, says):
    a, b = report(tmp_path / "a", [1.0]), report(tmp_path / "b", [1.0], **changed)
    with pytest.raises(InvalidInputError, match=says):
        compare_reports(read_report(a), read_report(b))


@pytest.mark.parametrize(
    "damage", [{"ttft": [1]}, {"ttft": {"p50": "x"}}, {"e2e": {"p50": 5.0, "p50_interval": [1]}}, {"tpot": "x"}]
)
def test_figures_that_are_none(tmp_path, damage):
    a, b = report(tmp_path / "a", [1.0]), report(tmp_path / "b", [1.0])
    document = json.loads(b.read_text())
    document["levels"][0] |= damage
    b.write_text(json.dumps(document))
    with pytest.raises(InvalidInputError, match="damaged"):
        compare_reports(read_report(a), read_report(b))


def test_files_that_are_none(tmp_path):
    (tmp_path / "text").write_text("hello")
    for name, says in (("text", "no JSON"), ("missing", "cannot be read")):
        with pytest.raises(InvalidInputError, match=says):
            read_report(tmp_path / name)
