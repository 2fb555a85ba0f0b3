"""The load generator for models that answer at once, against a scripted server whose every fault and count is known."""

import asyncio
import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import pytest

from aie.bench.at_once import AtOnceResult, run_at_once
from aie.bench.at_once_levels import plan_at_once, run_at_once_levels, show_at_once
from aie.bench.at_once_report import AtOnceRow, details, summarize_at_once
from aie.bench.client import Endpoint, Outcome
from aie.bench.command import bench
from aie.bench.counters import Counters, Window, read_counters, window
from aie.bench.knee import knee
from aie.bench.load import Sampler
from aie.bench.questions import Question, Tensor, ask_inputs, plan_questions
from aie.bench.target import Target
from aie.bench.workload import length_draw
from aie_engine import InvalidInputError

METRICS = """# HELP aie_prediction_batches_total Batches.
aie_prediction_batches_total{{model_name="m",reason="waited"}} {waited}
aie_prediction_batches_total{{model_name="m",reason="full"}} {full}
aie_prediction_batches_total{{model_name="other",reason="full"}} 1000
aie_prediction_batch_inputs_total{{model_name="m"}} {inputs}
aie_prediction_tokens_total{{model_name="m"}} {tokens}
aie_prediction_batch_utilisation{{model_name="m"}} {utilisation}
aie_prediction_phase_seconds_sum{{model_name="m",phase="queue"}} {queue}
aie_prediction_phase_seconds_sum{{model_name="m",phase="compute"}} 1.0
aie_prediction_phase_seconds_bucket{{model_name="m",phase="queue",le="+Inf"}} 9
aie_process_resident_memory_bytes 5e6
"""


class Scripted(ThreadingHTTPServer):
    """Answers every POST with `status` and `answer`; keeps what came, and counts connections."""

    daemon_threads = True
    status, answer, close_after_each = 200, b'{"data": []}', False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.gets: dict[str, list[bytes]] = {}
        self.posts: list[tuple[str, bytes]] = []
        self.num_connections = 0
        self.endpoint = Endpoint("127.0.0.1", self.server_address[1], "", False)

    def target(self) -> Target:
        return Target(self.endpoint, "m", None)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def setup(self) -> None:
        super().setup()
        self.server.num_connections += 1

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        answers = self.server.gets.get(self.path)
        self._answer(200 if answers else 404, answers.pop(0) if answers else b"{}")

    def do_POST(self) -> None:
        self.server.posts.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(self.server.status, self.server.answer)

    def _answer(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n"
        if self.server.close_after_each:
            head, self.close_connection = head + "Connection: close\r\n", True
        self.wfile.write(f"{head}\r\n".encode() + body)


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    thread = threading.Thread(target=scripted.serve_forever, args=(0.01,))
    thread.start()
    yield scripted
    scripted.shutdown()
    thread.join()
    scripted.server_close()


def metrics(**values: float) -> bytes:
    given = {"waited": 2, "full": 0, "inputs": 2, "tokens": 20, "utilisation": 0.1, "queue": 1.0, **values}
    return METRICS.format(**given).encode()


def run(server: Scripted, questions: list[Question], clients: int, count: int, **options: Any) -> AtOnceResult:
    settings: dict[str, Any] = {"duration_s": None, "timeout_s": 10, **options}
    sampler = Sampler(server.endpoint, None, lambda: None)
    return asyncio.run(run_at_once(server.endpoint, "m", questions, clients, count=count, sampler=sampler, **settings))


def questions_of(kind: str, inputs: list[Tensor] | None = None, count: int = 5) -> list[Question]:
    return plan_questions(kind, "m", inputs or [], count, length=length_draw("lognormal", (3, 176)), seed=3)


def test_each_client_keeps_its_connection_and_questions_come_round_again(server: Scripted) -> None:
    questions = questions_of("embeddings")
    result = run(server, questions, 3, 20)
    assert [outcome.error for outcome in result.outcomes] == [None] * 20
    assert sorted(body for _, body in server.posts) == sorted([question.body for question in questions] * 4)
    assert {path for path, _ in server.posts} == {"/v1/embeddings"}
    assert server.num_connections <= 3 + 2  # two looks at the metrics


def test_a_server_that_closes_is_asked_on_new_connections(server: Scripted) -> None:
    server.close_after_each = True
    result = run(server, questions_of("embeddings"), 2, 9)
    assert [outcome.error for outcome in result.outcomes] == [None] * 9
    assert server.num_connections == 9 + 2


def test_failures_are_counted_and_kept_in_the_number_of_requests(server: Scripted) -> None:
    server.status, server.answer = 429, b'{"error": {"message": "no room"}}'
    row = summarize_at_once(run(server, questions_of("embeddings"), 2, 6))
    assert (row.requests, row.answered, row.failed, row.requests_per_s) == (6, 0, 6, 0)
    assert row.p50_ms is None and row.errors == {"HTTP 429: no room": 6}
    assert details([row])[-1] == "2 clients: 6 × HTTP 429: no room"
    server.status, server.answer = 200, b""
    assert run(server, questions_of("embeddings"), 1, 1).outcomes[0].error == "the answer is empty"


def test_nothing_is_begun_after_the_duration(server: Scripted) -> None:
    assert run(server, questions_of("embeddings"), 2, 100, duration_s=1e-9).outcomes == []


def test_the_servers_own_counts_of_the_window(server: Scripted) -> None:
    # 2 batches of 1 before (a tenth of 10), then 3 full of 10 and 1 of 4.
    server.gets["/metrics"] = [
        metrics(),
        metrics(waited=3, full=3, inputs=36, tokens=700, utilisation=0.6, queue=4.0),
    ]
    result = run(server, questions_of("embeddings"), 1, 1)
    seen = result.window
    assert seen.mean_batch == pytest.approx(8.5) and seen.utilisation == pytest.approx(0.85)
    assert seen.reasons == {"waited": 1, "full": 3} and seen.tokens == 680
    assert seen.phase_shares == {"queue": 1.0, "compute": 0.0}
    assert result.peak_rss_bytes == 5_000_000
    assert "4 batches, cut as full 75%, waited 25%" in details([summarize_at_once(result)])[0]


def test_windows_in_which_nothing_is_known(server: Scripted) -> None:
    assert asyncio.run(read_counters(server.endpoint, "m")) is None
    server.gets["/metrics"] = [b"vllm:x 1\n"]
    assert asyncio.run(read_counters(server.endpoint, "m")) is None
    still = Counters({"full": 2.0}, 4.0, {}, 0.0, 0.5, 0.0)
    assert window(None, still) == window(still, None) == window(still, still) == Window()


def row(clients: int, requests_per_s: float, p50_ms: float | None) -> AtOnceRow:
    return AtOnceRow(clients, 500, 500, 0, 1.0, requests_per_s, p50_ms, p50_ms, None, 0.1, Window(), {})


def test_the_knee_is_the_level_of_greatest_power() -> None:
    rows = [row(1, 100, 10), row(8, 700, 11), row(32, 900, 36), row(64, 910, 70)]
    assert knee(rows) is rows[1]
    assert knee(rows[:1]) is None and knee([row(1, 0, None), row(8, 0, None)]) is None
    assert "may go on" in details(rows[:2])[-1] and "may go on" not in details(rows)[-1]


def test_a_generator_that_has_no_time_left_says_so() -> None:
    outcomes = [Outcome(sent_s=0.0, end_s=0.001)] * 200
    busy = summarize_at_once(AtOnceResult(4, outcomes, 1.0, client_cpu=0.97))
    assert "97% of a core" in details([busy])[-1]


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


def test_the_server_says_what_the_model_takes(server: Scripted) -> None:
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


def test_levels_one_after_another_and_the_table(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_at_once(
        server.target(), "embeddings", [1, 2], requests=10, duration_s=None, shape="lognormal", input_tokens=(3, 176),
        seed=0, timeout_s=10,
    )  # fmt: skip
    rows: list[AtOnceRow] = []
    run_at_once_levels(server.target(), plan, rows)
    assert [(row.concurrency, row.answered, row.failed) for row in rows] == [(1, 10, 0), (2, 10, 0)]
    assert len(server.posts) == 64 + 20  # the warm-up is in no row
    show_at_once(rows, plan, server.target())
    shown = capsys.readouterr().out
    assert "◀ knee" in shown and "0/10" in shown and "lognormal lengths" in shown


def test_without_numbers_a_level_takes_five_seconds_at_most(server: Scripted) -> None:
    server.gets["/v2/models/m"] = [b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}']
    plan = plan_at_once(
        server.target(), "infer", [1], requests=None, duration_s=None, shape="lognormal", input_tokens=(3, 176), seed=0,
        timeout_s=10,
    )  # fmt: skip
    assert plan.duration_s == 5.0 and plan.count == 200_000 and len(plan.questions) == 512
    assert plan.shape == ""  # no text, no lengths


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "images"}, "choose completions, chat, embeddings"),
        ({"lengths": "zipf"}, "choose uniform, lognormal, fixed"),
        ({"endpoint": "embeddings"}, "name one, such as --model minilm-l6"),
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
