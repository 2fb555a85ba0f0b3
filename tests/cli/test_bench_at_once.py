"""Models that answer in one piece, in the closed and the open loop, against a server whose every fault is known."""

import asyncio
import json
import struct
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.call_traffic import CallTraffic, Source
from aie.bench.command import bench
from aie.bench.fleet import Fleet
from aie.bench.generator import Call, Closed, Open, Outcome, Plan
from aie.bench.knee import knee
from aie.bench.load import LevelResult, Sampler, run_plan
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.questions import Question, Tensor, ask_inputs, plan_questions
from aie.bench.report import Row, summarize
from aie.bench.sources import Sources
from aie.bench.target import Target
from aie.bench.traffic import traffic_of
from aie.bench.whole_report import whole_table
from aie.bench.workload import Cancel, length_draw
from aie_engine import InvalidInputError

ANSWER = b'{"data": [], "usage": {"prompt_tokens": 7}}'


class Script:
    """What a server answers: GETs as `gets` says, once each; every POST with `status` and `answer`."""

    def __init__(self, threaded: Any) -> None:
        self.gets: dict[str, list[bytes]] = {}
        self.status, self.answer = 200, ANSWER
        self.server = threaded(self)
        self.endpoint = self.server.endpoint

    def __call__(self, asked: Any) -> tuple[int, bytes]:
        if asked.method == "POST":
            return self.status, self.answer
        answers = self.gets.get(asked.path)
        return (200, answers.pop(0)) if answers else (404, b"{}")

    def target(self) -> Target:
        return Target(self.endpoint, "m", None)


@pytest.fixture
def server(threaded: Any) -> Script:
    return Script(threaded)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet() as started:
        yield started


def run(fleet: Fleet, server: Script, calls: Sequence[Call], loop: Closed | Open) -> LevelResult:
    sampler = Sampler(server.endpoint, None, lambda: None)
    return asyncio.run(run_plan(Plan(server.endpoint, calls, loop, 10), sampler=sampler, fleet=fleet))


def traffic(server: Script, **options: Any) -> CallTraffic:
    given = {"url": "http://x", "model": "m", "endpoint": "embeddings", **options}
    made = traffic_of(server.target(), BenchOptions(**given), Sources())
    assert isinstance(made, CallTraffic)
    return made


def questions_of(kind: str, inputs: list[Tensor] | None = None, count: int = 5) -> list[Question]:
    return plan_questions(kind, "m", inputs or [], count, length=length_draw("lognormal", (3, 176)), seed=3)


def test_each_client_keeps_its_connection_and_questions_come_round_again(fleet: Fleet, server: Script) -> None:
    calls = traffic(server).requests(600, 1)
    result = run(fleet, server, calls, Closed(3))
    assert [outcome.error for outcome in result.outcomes] == [None] * 600
    posts = server.server.of("POST")
    assert len({asked.raw for asked in posts}) == 512 and {asked.path for asked in posts} == {"/v1/embeddings"}
    assert server.server.num_connections <= 3
    row = summarize(result)
    assert (row.answered, row.prompt_tokens, row.output_tokens, row.ttft.count) == (600, 4200, 0, 0)
    assert row.bytes_per_s == pytest.approx(600 * len(ANSWER) / row.wall_s)


def test_a_server_that_closes_is_asked_on_new_connections(fleet: Fleet, server: Script) -> None:
    server.server.closes = True
    result = run(fleet, server, traffic(server).requests(9, 1), Closed(2))
    assert [outcome.error for outcome in result.outcomes] == [None] * 9 and server.server.num_connections == 9


def test_failures_are_counted_and_kept_in_the_number_of_requests(fleet: Fleet, server: Script) -> None:
    server.status, server.answer = 429, b'{"error": {"message": "no room"}}'
    row = summarize(run(fleet, server, traffic(server).requests(6, 1), Closed(2)))
    assert (row.requests, row.answered, row.failed, row.ends["rejected"], row.requests_per_s) == (6, 0, 6, 6, 0)
    assert row.e2e.p50 is None and row.errors == {"HTTP 429: no room": 6}
    assert "2 clients: 6 × HTTP 429: no room" in notes([row])
    server.status, server.answer = 200, b""
    assert run(fleet, server, traffic(server).requests(1, 1), Closed(1)).outcomes[0].error == "the answer is empty"


def test_nothing_is_begun_after_the_duration(fleet: Fleet, server: Script) -> None:
    assert run(fleet, server, traffic(server).requests(100, 1), Closed(2, 1e-9)).outcomes == []


def test_the_open_loop_counts_from_when_requests_were_due(fleet: Fleet, server: Script) -> None:
    result = run(fleet, server, traffic(server).requests(5, 1), Open([0.0, 0.0, 0.01, 0.02, 0.02]))
    assert len(result.outcomes) == 5 and all(one.lag_s >= 0 for one in result.outcomes)
    result.offered_per_s = 250.0
    row = summarize(result)
    assert row.due_e2e.count == 5 and row.label == "250/s"
    headers = [column.header for column in whole_table([row], "t").columns]
    assert headers[0] == "rate" and "batch\nfull" in headers


def test_some_hang_up_when_all_has_been_sent(fleet: Fleet, server: Script) -> None:
    some = traffic(server, cancel="0.5@0")
    calls = some.requests(40, 1)
    gone = sum(call.hang_up_after == 0 for call in calls)
    assert 10 < gone < 30 and some.requests(40, 1) == calls
    same = CallTraffic("", [Source(lambda *_: [Call("/")], 1)], 0, 1, 1, Cancel(0.5, 0)).requests(99, 1)
    assert len({id(call) for call in same}) == 2
    row = summarize(run(fleet, server, calls, Closed(4)))
    assert (row.answered, row.ends["cancelled"], row.failed) == (40 - gone, gone, 0)


def row_of(clients: int, wall_s: float, e2e_s: float, count: int = 500) -> Row:
    outcomes = [Outcome(sent_s=0.0, end_s=e2e_s, status=200)] * count
    return summarize(LevelResult(clients, outcomes, wall_s, client_cpu=0.1))


def test_the_knee_is_the_level_of_greatest_power() -> None:
    rows = [row_of(1, 5.0, 0.01), row_of(8, 0.7, 0.011), row_of(32, 0.55, 0.036), row_of(64, 0.54, 0.07)]
    assert knee(rows) is rows[1]
    assert knee(rows[:1]) is None
    marks = [*whole_table(rows, "t").columns[-1].cells]
    assert marks == ["", "◀", "", ""]


def test_tensors_go_as_bytes_behind_their_json() -> None:
    (question,) = questions_of("infer", [Tensor("pixels", "FP32", (2, 3)), Tensor("text", "BYTES", ())], count=1)
    size = int(question.headers[1].partition(": ")[2])
    head, tail = json.loads(question.body[:size]), question.body[size:]
    assert question.path == "/v2/models/m/infer"
    assert [(one["datatype"], one["shape"]) for one in head["inputs"]] == [("FP32", [1, 2, 3]), ("BYTES", [1])]
    sizes = [one["parameters"]["binary_data_size"] for one in head["inputs"]]
    assert sum(sizes) == len(tail) and sizes[0] == 24
    assert all(0 <= value <= 1 for value in struct.unpack("<6f", tail[:24]))
    assert struct.unpack("<I", tail[24:28])[0] == len(tail[28:])


def test_an_input_without_an_axis_of_items_is_sent_as_it_is(server: Script) -> None:
    described = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 2]}]}
    server.gets["/v2/models/m"] = [json.dumps(described).encode()]
    [tensor] = ask_inputs(server.endpoint, "m")
    assert tensor == Tensor("x", "FP32", (3, 2), counts_items=False)
    (question,) = questions_of("infer", [tensor], count=1)
    assert json.loads(question.body[: int(question.headers[1].partition(": ")[2])])["inputs"][0]["shape"] == [3, 2]


@pytest.mark.parametrize(("datatype", "code"), [("FP16", "e"), ("UINT8", "B"), ("INT64", "q"), ("BOOL", "?")])
def test_numbers_of_every_kind(datatype: str, code: str) -> None:
    (question,) = questions_of("infer", [Tensor("x", datatype, (5,))], count=1)
    size = int(question.headers[1].partition(": ")[2])
    assert all(0 <= value <= 1 for value in struct.unpack(f"<5{code}", question.body[size:]))


def test_an_open_inference_server_need_not_list_its_models_as_openai_does(server: Script) -> None:
    server.gets["/v2/models/m"] = [b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [-1, 4]}]}']
    words = ["--url", server.endpoint.url, "--endpoint", "infer", "--model", "m", "--concurrency", "1"]
    found = CliRunner().invoke(app, ["bench", *words, "--requests", "5"])
    assert found.exit_code == 0 and "5/5" in found.output, found.output
    assert {asked.path for asked in server.server.of("POST")} == {"/v2/models/m/infer"}


def test_plain_json_has_the_shape_of_the_tensor() -> None:
    (question,) = questions_of("predict", [Tensor("pixels", "FP32", (2, 3))], count=1)
    values = json.loads(question.body)["inputs"]["pixels"]
    assert len(values) == 1 and [len(line) for line in values[0]] == [3, 3]
    (question,) = questions_of("predict", [Tensor("text", "BYTES", ())], count=1)
    assert isinstance(json.loads(question.body)["input"], str)
    (question,) = questions_of("predict", [Tensor("number", "INT32", ())], count=1)
    assert json.loads(question.body)["inputs"]["number"] in ([0], [1])


@pytest.mark.parametrize(
    "tensor", [Tensor("x", "FP32", (-1, 3)), Tensor("x", "BF16", (3,)), Tensor("x", "FP32", (1 << 25,))]
)
def test_inputs_for_which_nothing_can_be_made_up(tensor: Tensor) -> None:
    with pytest.raises(InvalidInputError, match="m takes x as"):
        questions_of("infer", [tensor])


def test_the_server_says_what_the_model_takes(server: Script) -> None:
    inputs = [{"name": "pixels", "datatype": "FP32", "shape": [-1, 784]}]
    server.gets["/v2/models/m"] = [json.dumps({"inputs": inputs}).encode(), b"[]", b'{"inputs": []}']
    assert ask_inputs(server.endpoint, "m") == [Tensor("pixels", "FP32", (784,))]
    for _ in range(3):  # no object, no inputs, then 404
        with pytest.raises(InvalidInputError, match="does not say at /v2/models/m"):
            ask_inputs(server.endpoint, "m")


def test_plans_are_seeded_and_lengths_as_asked() -> None:
    assert questions_of("embeddings") == questions_of("embeddings")
    draw = Random(1)
    lognormal = sorted(length_draw("lognormal", (3, 176))(draw) for _ in range(4001))
    assert lognormal[0] >= 3 and lognormal[-1] <= 176
    assert 21 <= lognormal[2000] <= 25 and 28 <= sum(lognormal) / 4001 <= 32
    assert {length_draw("fixed", (30, 30))(draw) for _ in range(9)} == {30}
    assert {length_draw("uniform", (2, 4))(draw) for _ in range(99)} == {2, 3, 4}


def test_levels_one_after_another_and_the_table(server: Script) -> None:
    server.gets["/v1/models"] = [b'{"data": [{"id": "m"}]}']
    words = ["--url", server.endpoint.url, "--endpoint", "embeddings", "--model", "m", "--concurrency", "1,2"]
    found = CliRunner().invoke(app, ["bench", *words, "--requests", "10"])
    assert found.exit_code == 0, found.output
    assert len(server.server.of("POST")) == 64 + 20  # the warm-up is in no row
    assert "◀ knee" in found.output and found.output.count("10/10") == 2 and "lognormal lengths" in found.output


def test_without_numbers_a_level_takes_five_seconds_at_most(server: Script) -> None:
    server.gets["/v2/models/m"] = [b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}']
    made = traffic(server, endpoint="infer")
    assert made.what == "infer, one input per request"  # no text, no lengths
    [level] = made.closed_levels([1], requests=None, duration_s=None)
    assert level.duration_s == 5.0 and len(level.requests) == 200_000 and level.num_requests is None
    assert len({id(call) for call in level.requests}) == 512
    [level] = made.closed_levels([1], requests=7, duration_s=None)
    assert (level.duration_s, level.num_requests) == (None, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "images"}, "choose completions, chat, embeddings"),
        ({"lengths": "zipf"}, "choose uniform, lognormal, fixed"),
        ({"endpoint": "embeddings"}, "name one, such as --model minilm-l6"),
        ({"endpoint": "embeddings", "model": "m", "cancel": "0.1@20tok"}, "0.1@0 hangs up"),
        ({"endpoint": "embeddings", "model": "m", "slo": "ttft<1s"}, "e2e_p99<50ms"),
        ({"endpoint": "embeddings", "model": "m", "shared_prefix": 3}, "--shared-prefix is for models that generate"),
        ({"endpoint": "predict", "model": "m", "lengths": "file:x"}, "--lengths file:PATH is for models that generate"),
    ],
)
def test_bad_options_are_told_before_anything_starts(options: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {
        "url": None, "model": None, "endpoint": "completions", "concurrency": "1", "requests": None, "duration": None,
        "lengths": None, "input_tokens": None, "output_tokens": "1", "seed": 0, "timeout_s": 1.0, "api_key": None,
        "serve_args": "", "json_path": None, **options,
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match=message):
        bench(**values)
