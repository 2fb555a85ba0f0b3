"""The judge of `aie bench` (`benchmarks/bench_truth.py`): what it computes of a server's notes, and the server itself.
No test looks at how long anything took."""

import http.client
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ("scripted_server", "bench_truth_figures", "bench_truth_scripts", "bench_truth_verdict", "agreement",
         "drive_others")  # fmt: skip


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def serve(modules):
    """A `Served` that kept to its script; times in whole seconds."""
    server = modules["scripted_server"]

    def make(number, arrival_s, *steps, has_left_s=None):
        script = server.Script(tuple((1e3 * after_s, action) for after_s, action in steps))
        written, at_s = [], arrival_s
        for after_s, _ in steps:
            at_s += after_s
            written.append(at_s)
        end_s = written[-1] if has_left_s is None else has_left_s
        return server.Served(number, script, arrival_s, end_s, has_left_s is not None, tuple(written))

    return make


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the scripted server needs epoll")
ANSWER = ((1, "head"), (0, "role"), (2, "text"), (1, "half"), (1, "rest"), (1, "text3"), (2, "usage"), (0, "done"))


def test_times_of_an_answer_by_hand(modules, serve):
    request = modules["bench_truth_figures"].Request(serve(1, 10.0, *ANSWER), "answered", due_s=8.0)
    assert (request.ttfr_s, request.ttft_s, request.e2e_s, request.lag_s) == (1.0, 3.0, 8.0, 2.0)
    assert request.gaps_s == [2.0, 1.0]  # half an event is none
    assert request.tokens == 5 and request.tpot_s == 3.0 / 4


@pytest.mark.parametrize(
    ("steps", "left_s", "kind"),
    [
        (ANSWER, None, "answered"),
        (((1, "status429"),), None, "rejected"),
        (((1, "status503"),), None, "rejected"),
        (((1, "status500"),), None, "failed"),
        (((1, "close"),), None, "failed"),
        (((1, "head"), (0, "text"), (1, "reset")), None, "cut"),
        (((1, "head"), (0, "text"), (1, "error"), (0, "close")), None, "cut"),
        (((1, "head"), (0, "text"), (1, "error"), (0, "done")), None, "cut"),
        (((0, "hold"),), 12.0, "timed out"),
        (((1, "head"), (0, "text")), 12.0, "cancelled"),
        (((1, "head"), (0, "text")), 15.0, "timed out"),
    ],
)
def test_kinds_of_ends(modules, serve, steps, left_s, kind):
    assert modules["bench_truth_figures"].kind_of(serve(1, 10.0, *steps, has_left_s=left_s), timeout_s=5.0) == kind


def test_figures_of_a_level_by_hand(modules, serve):
    figures = modules["bench_truth_figures"]
    served = [serve(3, 10.0, *ANSWER), serve(4, 11.0, (1, "status429")), serve(5, 12.0, *ANSWER)]
    rows = [
        {"end": "answered", "prompt_tokens": 5, "sent_s": 3.0, "due_s": 2.0, "first_token_s": 6.5},
        {"end": "rejected", "prompt_tokens": 0, "sent_s": 2.0, "due_s": 2.0},
        {"end": "answered", "prompt_tokens": 3, "sent_s": 1.0, "due_s": 1.0, "first_token_s": 4.0},
    ]
    warm_up = [serve(1, 1.0, *ANSWER), serve(2, 1.0, *ANSWER)]
    pairs = figures.matched(rows, [*warm_up, *served], timeout_s=30.0)
    assert [request.served.number for _, request in pairs] == [3, 4, 5]
    assert [request.lag_s for _, request in pairs] == [0.0, 0.0, 1.0]
    start_s = figures.due_start_s(rows, [*warm_up, *served])
    assert start_s == 9.0
    found = figures.figures([one for _, one in pairs], start_s, lambda one: one.lag_s == 0.0, is_open=True)
    assert (found["requests"], found["answered"], found["failed"], found["ends.rejected"]) == (3, 2, 1, 1)
    assert (found["good"], found["concurrency"], found["output_tokens"]) == (1, 2, 10)
    assert found["wall_s"] == 11.0 and found["output_tokens_per_s"] == 10 / 11
    assert found["tokens_per_event"] == 10 / 6
    assert (found["ttft.mean"], found["due_e2e.max"], found["lag.count"]) == (3000.0, 9000.0, 3)
    assert found["ttft.p50"] == 3000.0 and found["ttft.p90"] is None


def test_a_tail_is_bounded_as_the_binomial_distribution_says(modules):
    summary = modules["bench_truth_figures"]._summary
    assert summary([1.0] * 63)["p90"] is None and summary([1.0] * 64)["p90"] == 1.0
    assert summary([1.0] * 661)["p99"] is None and summary([1.0] * 662)["p99"] == 1.0
    of_ten_thousand = summary([float(number) for number in range(1, 10_001)])
    assert of_ten_thousand["p99"] == 9900.0
    assert of_ten_thousand["p99_bound"] == 10_001 - 77


def test_what_is_right(modules):
    verdict = modules["bench_truth_verdict"]

    def is_right(name, truth, said):
        return verdict.compare(name, truth, said).finding is verdict.Finding.RIGHT

    assert is_right("ttft.p50", 20.0, 20.9) and not is_right("ttft.p50", 20.0, 21.1)
    assert is_right("e2e.max", 1000.0, 1009.0) and not is_right("e2e.max", 1000.0, 1011.0)
    assert not is_right("ends.cut", 100, 101) and not is_right("ttft.count", 100, 101)
    assert is_right("output_tokens_per_s", 1000.0, 1009.0) and not is_right("output_tokens_per_s", 1000.0, 989.0)
    assert is_right("ttft.p99", None, None) and not is_right("ttft.p99", None, 5.0)
    assert not is_right("ttft.p99", 5.0, None)
    assert verdict.lookup({"a": {"b": [1, 2]}}, "a.b.1") == 2.0
    assert verdict.lookup({"a": None}, "a.b") is None


def test_the_scripts_hold_every_kind_of_end(modules):
    scripts = modules["bench_truth_scripts"].mixed_scripts(0)
    assert len(scripts) == 2000 and scripts == modules["bench_truth_scripts"].mixed_scripts(0)
    last = [script.steps[-1][1] for script in scripts[:200]]
    assert {name: last.count(name) for name in set(last)} == {
        "done": 180, "status429": 4, "status503": 3, "status500": 3, "close": 5, "reset": 3, "hold": 2,
    }  # fmt: skip


@pytest.mark.native
@on_linux
def test_the_server_keeps_to_its_scripts(modules):
    server = modules["scripted_server"]
    answer = server.Script(
        ((0, "head"), (0, "role"), (1, "half"), (1, "rest"), (0, "text2"), (0, "usage"), (0, "done"))
    )
    with server.scripted_server([answer, server.Script(((0, "status429"),))]) as running:
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "scripted"
        connection.request("POST", "/v1/completions", "{}")
        events = connection.getresponse().read().split(b"\n\n")
        connection.request("POST", "/v1/completions", "{}")
        refused = connection.getresponse()
        assert refused.status == 429 and b"as the script says" in refused.read()
        connection.close()
    assert events.pop() == b"" and events.pop() == b"data: [DONE]"
    role, *texts, usage = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert [event["choices"][0]["text"] for event in (role, *texts)] == ["", " word", " word word"]
    assert usage["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    first, second = running.records
    assert (first.number, second.number) == (1, 2) and first.script == answer
    assert len(first.written_s) == len(answer.steps) and not first.has_left
    assert first.arrival_s <= first.written_s[0] <= first.end_s <= second.arrival_s
    assert [tokens for _, tokens in first.texts] == [1, 2]


@pytest.mark.native
@on_linux
def test_a_server_with_a_script_that_is_none_says_so(modules):
    server = modules["scripted_server"]
    with (
        pytest.raises(RuntimeError, match="an action that is none: 0:dance"),
        server.scripted_server([server.Script(((0, "dance"),))]),
    ):
        pass


def test_two_generators_agree_within_three_percent_and_ours_with_the_truth(modules):
    line = modules["agreement"].Line
    assert not line("ttft.p50", 102.0, 99.5, (100.0, 100.0), must_agree=True).is_wrong
    assert line("ttft.p50", 102.0, 98.0, (100.0, 100.0), must_agree=True).is_wrong
    they_are_wrong = line("ttft.p50", 102.0, 90.0, (100.0, 100.0), must_agree=True)
    assert not they_are_wrong.is_wrong and they_are_wrong.finding == "aie bench is right, theirs is not"
    assert not line("ttft.p50", 102.0, 203.0, (100.0, 200.0), must_agree=True).is_wrong  # each against its own run
    assert not line("ttft.p50", 102.0, 50.0, (100.0, 100.0)).is_wrong  # they are wrong, and known to be
    assert line("ttft.p50", 104.0, 104.0, (100.0, 100.0), must_agree=True).is_wrong
    assert not line("ttft.p50", 100.0, 102.0, must_agree=True).is_wrong
    assert line("ttft.p50", 100.0, 105.0, must_agree=True).is_wrong
    assert (
        line("ttft.p50", None, 100.0, (100.0, 100.0)).is_wrong and line("ttft.p50", 1.0, None, must_agree=True).is_wrong
    )


def test_what_must_hold_of_a_run_against_another_server(modules):
    judge = modules["drive_others"].judge
    row = {"end": "answered", "output_tokens": 24, "prompt_tokens": 9, "sent_s": 0.1, "first_byte_s": 0.2,
           "first_token_s": 0.2, "end_s": 0.3}  # fmt: skip
    level = {"requests": 2, "failed": 0, "errors": {}, "uncounted": 0, "ends": {"answered": 1, "cancelled": 1}}
    assert list(judge(level, [row, {"end": "cancelled"}])) == []
    wrong = {"requests": 3, "failed": 1, "errors": {"cut": 1}, "uncounted": 2, "ends": {"answered": 1, "cancelled": 1}}
    odd = row | {"output_tokens": 23, "prompt_tokens": 0, "first_token_s": 0.15}
    assert list(judge(wrong, [odd])) == [
        "1 of 3 not answered: {'cut': 1}",
        "of 2 answers the server did not count the tokens",
        "1 answers were not of 24 tokens",
        "of 1 prompts the server did not count the tokens",
        "in 1 answers times are not in their order",
    ]
