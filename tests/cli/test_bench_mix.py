"""`aie bench --mix`: shares that are kept, rows for each part, and what contradicts it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.assemble import DEFAULT_MODEL
from aie.bench.call_traffic import CallTraffic
from aie.bench.command import models_to_serve
from aie.bench.curve import curve
from aie.bench.generator import Endpoint, Outcome
from aie.bench.knee import knee
from aie.bench.load import LevelResult
from aie.bench.mix import Part, models_of, named, parse_mix
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.repeats import Repeated, figures_of
from aie.bench.report import summarize
from aie.bench.server_side import ServerWindow
from aie.bench.slo import parse_slo
from aie.bench.sources import Sources
from aie.bench.target import Target
from aie.bench.traffic import traffic_of
from aie.bench.whole_report import parts_table
from aie_engine import InvalidInputError

MIX = "chat:big=2,embeddings:small=1,http=1"
EVENTS = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {"content": "b"}}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n\ndata: [DONE]\n\n'
)


class Script:
    """A server of three kinds; what embeddings are answered may change."""

    def __init__(self) -> None:
        self.embeddings = 200, b'{"data": [], "usage": {"prompt_tokens": 7}}'
        self.looks = 0

    def __call__(self, asked: Any) -> tuple[int, bytes]:
        if asked.path == "/metrics":
            self.looks += 1
            lines = [
                'aie_num_requests_running{model_name="big"} 3',
                f'aie_engine_steps_total{{model_name="big"}} {self.looks}',
                f'aie_engine_step_requests_total{{model_name="big"}} {2 * self.looks}',
                'aie_prediction_inputs_waiting{model_name="small"} 1',
                f'aie_prediction_batch_inputs_total{{model_name="small"}} {8 * self.looks}',
                f'aie_prediction_batches_total{{model_name="small",reason="full"}} {self.looks}',
            ]
            return 200, "\n".join(lines).encode()
        answers = {
            "/v1/models": (200, b'{"data": [{"id": "big"}, {"id": "small"}]}'),
            "/v1/chat/completions": (200, EVENTS),
            "/v1/embeddings": self.embeddings,
        }
        return answers.get(asked.path, (200, b"plain"))


def bench(server: Any, *words: str) -> Any:
    return CliRunner().invoke(app, ["bench", "--url", server.endpoint.url, "--mix", MIX, *words])


@pytest.mark.parametrize("loop", [["--concurrency", "3"], ["--rate", "200", "--arrivals", "constant"]])
def test_a_row_for_all_and_one_for_each_part(threaded: Any, tmp_path: Path, loop: list[str]) -> None:
    files = {name: tmp_path / name for name in ("json", "rows", "markdown", "html")}
    server = threaded(Script())
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    run = bench(server, "--requests", "40", *loop, *words)
    assert run.exit_code == 0, run.output
    document = json.loads(files["json"].read_text())
    [level] = document["levels"]
    parts = level["parts"]
    assert list(parts) == ["chat:big", "embeddings:small", "http"]
    asked = Counter(json.loads(line)["part"] for line in files["rows"].read_text().splitlines())
    assert {label: part["requests"] for label, part in parts.items()} == dict(asked) and sum(asked.values()) == 40
    assert level["requests"] == level["answered"] == 40 and document["knee"] is None
    assert parts["chat:big"]["ttft"]["count"] == level["ttft"]["count"] == asked["chat:big"]
    assert parts["http"]["ttft"]["count"] == 0 and parts["http"]["e2e"]["count"] == asked["http"]
    assert parts["embeddings:small"]["prompt_tokens"] == 7 * asked["embeddings:small"]
    assert (parts["chat:big"]["mean_batch"], parts["embeddings:small"]["mean_batch"]) == (2.0, 8.0)
    assert document["test"]["mix"] == {"chat:big": 0.5, "embeddings:small": 0.25, "http": 0.25}
    for text in (run.output, files["markdown"].read_text(), files["html"].read_text()):
        assert "By part" in text and "embeddings:small" in text
    assert "50% chat:big, 25% embeddings:small, 25% http" in run.output


def test_what_fails_is_the_parts_own(threaded: Any, tmp_path: Path) -> None:
    script, out = Script(), tmp_path / "json"
    script.embeddings = 500, b"out of order"
    run = bench(threaded(script), "--requests", "30", "--concurrency", "2", "--json", str(out))
    assert run.exit_code == 1
    [level] = json.loads(out.read_text())["levels"]
    failed = {label: part["failed"] for label, part in level["parts"].items()}
    assert failed["embeddings:small"] == level["failed"] > 0 == failed["chat:big"] == failed["http"]
    assert f"2 clients: embeddings:small, {level['failed']} × HTTP 500: out of order" in run.output


def test_two_reports_are_compared_part_by_part(threaded: Any, tmp_path: Path) -> None:
    server, files = threaded(Script()), [tmp_path / "a", tmp_path / "b"]
    for file in files:
        bench(server, "--requests", "12", "--concurrency", "2", "--json", str(file))
    run = CliRunner().invoke(app, ["bench", "compare", *map(str, files)])
    assert run.exit_code in (0, 1) and "2 clients, embeddings:small" in run.output, run.output
    # What does not stream has neither tokens nor a first one.
    assert [run.output.count(name) for name in ("TTFT P50", "tokens per s", "E2E P50")] == [1, 1, 3]


def traffic(seed: int = 0, **more: Any) -> CallTraffic:
    given = {"mix": MIX, "seed": seed, "output_tokens": "5"} | more
    options = BenchOptions(endpoint="mix", url="http://127.0.0.1:1", **given)
    made = traffic_of(Target(Endpoint("127.0.0.1", 1, "", False), "big", None), options, Sources())
    assert isinstance(made, CallTraffic)
    return made


def test_shares_are_kept_and_all_is_drawn_before_the_clock_starts() -> None:
    calls = traffic().requests(4000, 1)
    counts = Counter(call.part for call in calls)
    assert abs(counts["chat:big"] - 2000) < 150 and abs(counts["http"] - 1000) < 120
    assert calls == traffic().requests(4000, 1)
    assert [call.part for call in calls] != [call.part for call in traffic(1).requests(4000, 1)]
    chats = [call for call in calls if call.part == "chat:big"]
    assert (
        len({call.body for call in chats}) == len(chats[:2048]) and json.loads(chats[0].body or b"")["max_tokens"] == 5
    )
    assert {call.answer for call in calls} == {"stream", "whole"}


def test_every_part_is_warmed_up() -> None:
    calls = traffic(mix="chat:big=1000,embeddings:small=1,http=1").warm_up_calls()
    assert Counter(call.part for call in calls) == {"chat:big": 4, "embeddings:small": 4, "http": 4}


def test_who_hangs_up() -> None:
    def gone(**options: Any) -> Counter[str]:
        calls = traffic(**options).requests(400, 1)
        return Counter(call.part for call in calls if call.hang_up_after is not None)

    assert set(gone(cancel="0.5@3tok")) == {"chat:big"}  # who has tokens to wait for
    at_all = gone(cancel="0.5@0")
    assert set(at_all) == {"chat:big", "embeddings:small", "http"} and 160 < at_all.total() < 240


def test_lengths_are_of_the_parts_that_generate_where_there_is_one() -> None:
    def words(mix: str, part: str) -> set[int]:
        calls = traffic(mix=mix, input_tokens="300").requests(60, 1)
        bodies = [json.loads(call.body or b"") for call in calls if call.part == part]
        return {len(str(body.get("input") or body["messages"][0]["content"]).split()) for body in bodies}

    assert words(MIX, "chat:big") == {285} and max(words(MIX, "embeddings:small")) < 176
    assert words("embeddings:small=1,http=1", "embeddings:small") == {298}


def test_a_level_is_as_long_as_the_clock_says_where_nothing_was_said() -> None:
    [level] = traffic().closed_levels([4], requests=None, duration_s=None)
    assert level.duration_s == 10.0 and level.num_requests is None


def test_a_mix_has_no_knee_and_its_curve_is_of_what_streams() -> None:
    def result(clients: int) -> LevelResult:
        fast = [Outcome(sent_s=0.0, end_s=0.01, part="b", status=200) for _ in range(5)]
        slow = [Outcome(0.0, 0.5, 1.0, 1.0, 5, 2, 200, part="a") for _ in range(5)]
        return LevelResult(clients, [*fast, *slow], 1.0, offered_per_s=10.0 * clients)

    rows = [summarize(result(1)), summarize(result(2))]
    assert knee(rows) is None and rows[0].parts["a"].offered_per_s == 5.0
    _, points = curve({"levels": [row.as_json() for row in rows]})
    assert all(set(point.latencies) <= {"TTFT P50"} for point in points)
    view = parts_table(rows)
    assert view is not None and len(view.rows) == 4 and parts_table([summarize(LevelResult(1, [], 1.0))]) is None
    assert not any("Kleinrock" in line for line in notes(rows))
    again = {(one.label, one.figure): one.mean for one in Repeated.of(rows, figures_of(rows))}
    assert again["10/s", "b E2E P50 ms"] == pytest.approx(10) and ("10/s", "E2E P50 ms") not in again


def test_limits_on_tokens_say_nothing_of_answers_in_one_piece() -> None:
    slo = parse_slo("ttft_p99<100ms,e2e<2s")
    stream = Outcome(0.0, 0.05, 1.0, 1.0, 5, 2, 200)
    whole = Outcome(sent_s=0.0, end_s=1.5, status=200, is_stream=False)
    failed = Outcome(sent_s=0.0, end_s=1.5, status=500, error="HTTP 500", is_stream=False)
    assert slo.is_met_by(stream) and slo.is_met_by(whole) and slo.broken_by([stream, whole]) == []
    assert slo.measured([stream, whole]) == [0.05, 1.5]
    ttft, e2e = slo.limits
    assert not ttft.is_broken_by(failed) and e2e.is_broken_by(failed) and not slo.is_met_by(failed)
    assert not ttft.is_broken_already_by(whole, 9.0) and e2e.is_broken_already_by(whole, 9.0)
    assert slo.broken_by([stream, failed]) == ["e2e<2000ms: no answer"]


def test_a_limit_of_one_part() -> None:
    slo = parse_slo("ttft_p99<1s@chat, e2e<20ms@embeddings:small")
    assert str(slo) == "ttft_p99<1000ms@chat,e2e<20ms@embeddings:small"
    fast = Outcome(sent_s=0.0, end_s=0.01, status=200, is_stream=False, part="embeddings:small")
    slow = Outcome(sent_s=0.0, end_s=0.03, status=200, is_stream=False, part="embeddings:small")
    chat = Outcome(0.0, 0.5, 5.0, 5.0, 5, 2, 200, part="chat:big")
    other = Outcome(sent_s=0.0, end_s=9.0, status=200, is_stream=False, part="http")
    assert [slo.is_met_by(one) for one in (fast, slow, chat, other)] == [True, False, True, True]
    assert slo.measured([fast, chat, other]) == [0.5, 0.01] and slo.broken_by([fast, chat, other]) == []
    assert slo.broken_by([slow, chat]) == ["e2e<20ms@embeddings:small: 30 ms"]
    assert not slo.limits[1].is_broken_already_by(chat, 9.0) and slo.limits[1].is_broken_already_by(fast, 9.0)


def test_names_and_models() -> None:
    parts = parse_mix(" chat=3 , embeddings:small=1")
    assert parts == (Part("chat", None, 0.75), Part("embeddings", "small", 0.25))
    assert [part.label for part in named(parts, "big")] == ["chat:big", "embeddings:small"]
    assert models_of(parts, "default") == ["default", "small"]
    assert models_of(parse_mix("chat:a=1,completions:a=1,http=1"), "default") == ["a"]


def test_a_server_of_the_tests_own_has_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie.assemble.find_model", lambda name: name)
    monkeypatch.setattr("aie_loader.is_predictor", lambda name: name == "small")
    options = BenchOptions(endpoint="mix", mix="chat=1,completions:big=1,embeddings:small=1,http=1")
    assert models_to_serve(options) == [DEFAULT_MODEL, "big", "small"]
    for wrong in ("chat:small=1,http=1", "embeddings:big=1,http=1"):
        with pytest.raises(InvalidInputError, match="has no"):
            models_to_serve(BenchOptions(endpoint="mix", mix=wrong))


def test_the_energy_of_gpus_is_of_the_whole_mix() -> None:
    told = {"a": ServerWindow("Triton"), "b": ServerWindow("Triton", gpu_energy_j=10.0)}
    row = summarize(LevelResult(1, [Outcome(end_s=1.0), Outcome(end_s=1.0)], 2.0, servers=told))
    assert row.energy is not None and (row.energy.watts, row.energy.j_per_request) == (5.0, 5.0)
    still = {"b": ServerWindow("Triton", gpu_energy_j=0.0)}
    assert summarize(LevelResult(1, [Outcome(end_s=1.0)], 2.0, servers=still)).energy is None


@pytest.mark.parametrize(
    "text",
    ["", "chat", "chat=1", "chat=0,http=1", "chat=nan,http=1", "chat:=1,http=1", "x=1,http=1", "http:m=1,chat=1",
     "chat:a=1,chat:a=2", "chat=-1,http=1"],
)  # fmt: skip
def test_mixes_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--mix"):
        parse_mix(text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpoint": "chat"}, "leave --endpoint out"),
        ({"model": "m"}, "--model does not go with --mix"),
        ({"turns": 3}, "--turns does not go with --mix"),
        ({"trace": Path("x")}, "--trace does not go with --mix"),
        ({"engine": True}, "--engine does not go with --mix"),
        ({"mix": "chat=1,predict=1"}, "the model of predict"),
        ({"mix": "chat=1,embeddings:e=1", "path": "/x"}, "--path is for plain HTTP"),
        ({"mix": "http=1,embeddings:e=1", "slo": "ttft<1s"}, "end-to-end"),
        ({"slo": "e2e<1s@embeddings"}, "a part that --mix has not: it has chat:a, http"),
        ({"slo": "ttft<1s@http"}, "http answers in one piece"),
        ({"slo": "ttft<1s@"}, "--slo has"),
        ({"mix": None, "endpoint": "chat", "slo": "e2e<1s@chat"}, "give --mix, or leave @chat out"),
        ({"mix": None}, "needs its parts"),
    ],
)
def test_options_that_contradict_it(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        BenchOptions(**({"endpoint": "mix", "mix": "chat:a=1,http=1"} | options))
