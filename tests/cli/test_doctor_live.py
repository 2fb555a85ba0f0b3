"""`aie doctor --url` against a scripted server: what is asked, what is counted, and faults that must be named.

The scripted server answers at once, so a run needs no more time than it is given here.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.client import Endpoint
from aie.doctor import live, memory_rounds
from aie.doctor.asking import Answer, Asker, numbers_in
from aie.doctor.connecting import connect_to
from aie.doctor.gaps import gaps_after_all_began, standstills
from aie.doctor.loop import closed_loop, load_of
from aie.doctor.measured import Neighbours
from aie.doctor.memory_growth import judge_memory
from aie.doctor.memory_rounds import MemoryGauge, run_rounds
from aie.doctor.server import Window, look_at_metrics
from aie_engine import available_cores

METRICS = """\
aie_num_requests_running{{model_name="m"}} 0
aie_num_requests_waiting{{model_name="m"}} 0
aie_engine_steps_total{{model_name="m"}} {steps}
aie_engine_step_requests_total{{model_name="m"}} {steps}
aie_generation_tokens_total{{model_name="m"}} {steps}
aie_engine_resident_memory_bytes{{model_name="m"}} {engine}
aie_process_resident_memory_bytes 1000000
aie_python_gc_pause_seconds_total{{process="front"}} 0.25
aie_python_gc_pause_seconds_total{{process="m"}} 0.5
aie_python_gc_frozen_objects{{process="m"}} 40000
"""


class Scripted(ThreadingHTTPServer):
    """answer: (path, body, number of the request, how many are under way) → status and what is said."""

    daemon_threads, request_queue_size = True, 64

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.metrics, self.paths = answer, None, []
        self.lock, self.number, self.under_way = threading.Lock(), 0, 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.endpoint = Endpoint("127.0.0.1", self.server_address[1], "", False)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        metrics = self.server.metrics
        if self.path == "/v1/models":
            self._send(200, json.dumps({"data": [{"id": "m", "max_model_len": 400}]}).encode())
        elif self.path == "/metrics" and metrics is not None:
            self._send(200, metrics(self.server.number).encode())
        else:
            self._send(404, b"{}")

    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.number, server.under_way = server.number + 1, server.under_way + 1
            number, crowd = server.number, server.under_way
            server.paths.append(self.path)
        status, said = server.answer(self.path, body, number, crowd)
        with server.lock:
            server.under_way -= 1
        if isinstance(said, list):
            events = [{"choices": [{"text": one} if "prompt" in body else {"delta": {"content": one}}]} for one in said]
            events.append({"choices": [], "usage": {"prompt_tokens": 48, "completion_tokens": len(said)}})
            lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
            self._send(status, "".join(lines).encode(), "text/event-stream")
        else:
            self._send(status, json.dumps(said).encode())

    def _send(self, status, data, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # who was given up does not read any more
            self.wfile.write(data)


def words_of(body):
    return [f" {word}" for word in str(body.get("prompt") or body["messages"][0]["content"]).split()]


def echo(path, body, _number, _crowd):
    """The prompt's own words, as many as are asked for: the same for whoever asks."""
    if not path.endswith("/completions"):
        return 404, {"error": {"message": "no such route"}}
    return 200, (words_of(body) * 40)[: body["max_tokens"]]


@pytest.fixture
def scripted():
    server = Scripted(echo)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def doctor(scripted, monkeypatch, tmp_path):
    """`aie doctor --url` in little time: (exit code, findings by name, the whole document)."""
    monkeypatch.setattr(live, "_BUDGET_S", 1.5)
    monkeypatch.setattr(live, "_LEAST_S", 1.2)

    def call():
        path = tmp_path / "found.json"
        result = CliRunner().invoke(app, ["doctor", "--url", scripted.url, "--json", str(path)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        document = json.loads(path.read_text())
        return result.exit_code, {one["what"]: one for one in document["findings"]}, document

    return call


def test_a_server_in_order(doctor, scripted):
    _, found, document = doctor()
    assert document["complete"] and document["model"] == "m" and document["server"] == "the server"
    assert found["same answer"]["level"] == "ok" and found["refusals"]["level"] == "ok"
    assert {"first request", "batch utilisation", "throughput", "P99 spikes", "memory"} <= set(found)
    assert set(scripted.paths) == {"/v1/completions"}
    assert found["refusals"]["figures"]["sent"] == scripted.number - 1, "the first one was asked how it can be asked"


def test_answers_that_depend_on_their_company(doctor, scripted):
    asked = Counter()

    def answer(path, body, number, crowd):
        asked[body["prompt"]] += 1
        status, said = echo(path, body, number, crowd)
        # Alone, and again; the third time it is among others.
        return status, said if asked[body["prompt"]] < 3 else said[:2] + [" crowded"] * (len(said) - 2)

    scripted.answer = answer
    code, found, _ = doctor()
    assert code == 1 and found["same answer"]["level"] == "bad"
    assert "among 4 requests" in found["same answer"]["text"] and "padding_side" in found["same answer"]["change"]


def test_answers_that_are_never_the_same(doctor, scripted):
    scripted.answer = lambda path, body, number, crowd: (200, [f" {number}"] * body["max_tokens"])
    code, found, _ = doctor()
    assert code == 1 and "asked again" in found["same answer"]["text"]


def test_refusals_and_failures_are_told_apart(doctor, scripted):
    def answer(path, body, number, crowd):
        if number > 1 and number % 3 == 0:
            return 429, {"error": {"message": "slow down"}}
        if number > 1 and number % 5 == 0:
            return 500, {"error": {"message": "oh"}}
        return echo(path, body, number, crowd)

    scripted.answer = answer
    code, _, document = doctor()
    refusals = [one for one in document["findings"] if one["what"] == "refusals"]
    assert code == 1 and [one["level"] for one in refusals] == ["bad", "bad"]
    assert "got 429" in refusals[0]["text"] and "HTTP 500: oh" in refusals[1]["text"]


def test_what_the_servers_metrics_add(doctor, scripted, monkeypatch):
    monkeypatch.setattr("aie.doctor.connecting.find_process", lambda _endpoint: None)  # as if it were elsewhere
    scripted.metrics = lambda number: METRICS.format(steps=number, engine=int(1e8))
    _, found, document = doctor()
    assert document["server"] == "aie"
    assert found["machine"]["level"] == "ok" and "not looked at" in found["machine"]["text"]
    assert "request after the start" in found["first request"]["text"], "its counters stood at 0"
    assert found["batch utilisation"]["figures"]["mean_batch"] == 1.0


def test_memory_by_the_servers_own_metrics(scripted, monkeypatch):
    monkeypatch.setattr(memory_rounds, "_SETTLE_S", 0.0)

    def judged(bytes_a_request):
        scripted.metrics = lambda number: METRICS.format(steps=number, engine=int(1e8) + bytes_a_request * number)
        asker, until_s = Asker(scripted.endpoint, "m", "completions"), time.perf_counter() + 60
        gauge = MemoryGauge(asker, None, has_metrics=True)
        seen = asyncio.run(run_rounds(lambda n: asker.write(f"text {n}", 2, until_s=until_s), gauge, 8, until_s))
        assert len(seen.sizes) == 12 and seen.source == "memory by its own metrics"
        return judge_memory(seen, "aie", scripted.url), seen

    fine, _ = judged(0)
    leaking, seen = judged(100_000)
    assert fine.level == "ok" and leaking.level == "bad" and "aie memdebug --url" in leaking.change
    assert leaking.figures["slope"] == pytest.approx(100_000 * seen.requests_per_round)


def test_without_memory_it_says_so(doctor, monkeypatch):
    monkeypatch.setattr("aie.doctor.connecting.find_process", lambda _endpoint: None)
    _, found, _ = doctor()
    assert "does not apply" in found["memory"]["text"]


def test_a_server_that_only_chats(doctor, scripted):
    def answer(path, body, number, crowd):
        return echo(path, body, number, crowd) if path == "/v1/chat/completions" else (404, {})

    scripted.answer = answer
    _, found, _ = doctor()
    assert found["same answer"]["level"] == "ok" and found["refusals"]["level"] == "ok"
    assert set(scripted.paths[1:]) == {"/v1/chat/completions"}


def vectors(path, body, _number, crowd):
    """Of a text its length and number of letters e; of a list one for each."""
    if path != "/v1/embeddings":
        return 404, {}
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"index": n, "embedding": [len(text) / 7, text.count("e") / 3]} for n, text in enumerate(texts)]
    return 200, {"data": data, "usage": {"prompt_tokens": crowd}}


def test_a_server_of_embeddings(doctor, scripted):
    scripted.answer = vectors
    _, found, document = doctor()
    assert document["complete"] and found["same answer"]["level"] == "ok"
    assert "in one request with longer inputs" in found["same answer"]["text"]
    assert "does not apply" in found["batch utilisation"]["text"]
    assert "inputs/s by clients" in found["throughput"]["text"]


def test_padding_that_changes_the_numbers(doctor, scripted):
    def answer(path, body, number, crowd):
        status, said = vectors(path, body, number, crowd)
        if status == 200 and isinstance(body["input"], list):  # as wide as the widest
            for one in said["data"]:
                one["embedding"][0] += 0.5
        return status, said

    scripted.answer = answer
    code, found, _ = doctor()
    assert code == 1 and found["same answer"]["level"] == "bad" and "padding" in found["same answer"]["text"]


def test_a_server_that_answers_nothing_known(doctor, scripted):
    scripted.answer = lambda path, body, number, crowd: (404, {})
    with pytest.raises(Exception, match="answers nothing that can be checked here"):
        doctor()


def test_a_server_that_goes_away_ends_the_checks(doctor, scripted):
    def answer(path, body, number, crowd):
        if number == 4:
            scripted.socket.close()  # whoever comes now is refused
        return (500, {}) if number >= 4 else echo(path, body, number, crowd)

    scripted.answer = answer
    code, found, document = doctor()
    assert code == 1 and document["complete"] and "stopped answering" in found["server"]["text"]
    assert "memory" not in found and "refusals" in found


def test_what_metrics_say_of_the_collector(scripted):
    scripted.metrics = lambda number: METRICS.format(steps=3, engine=7)
    look = asyncio.run(look_at_metrics(scripted.endpoint, "m"))
    assert look.collector == {"pause_s": 0.75, "frozen": 40000.0} and look.memory == 1_000_007
    scripted.metrics = lambda number: "half a {line"
    assert asyncio.run(look_at_metrics(scripted.endpoint, "m")) is None


def test_who_it_is(scripted):
    class Target:
        endpoint, model = scripted.endpoint, "m"

    patient = connect_to(Target(), os.getpid())
    assert patient.asker.kind == "completions" and patient.max_length == 400 and patient.is_fresh
    assert patient.probe.answer.num_tokens == 8 and not patient.has_metrics


def test_an_answer_in_time_or_not(scripted):
    release = threading.Event()

    def answer(path, body, number, crowd):
        release.wait(30)
        return echo(path, body, number, crowd)

    scripted.answer = answer
    seen = []
    asker = Asker(scripted.endpoint, "m", "completions", seen.append)
    late = asyncio.run(asker.write("a b", 2, until_s=time.perf_counter()))
    release.set()
    good = asyncio.run(asker.write("a b", 2, until_s=time.perf_counter() + 20))
    assert late.is_late and late.error and not good.error and good.text == " a b" and seen == [late, good]


def test_a_level_from_its_answers():
    def one(sent_s, end_s, first_s=None, last_s=None, tokens=0, **more):
        return Answer(sent_s, end_s, first_s, last_s, num_tokens=tokens, **more)

    answers = [
        one(0, 4, 1, 4, 8), one(0, 4, 2, 4, 8), one(4, 8, 5, 8, 8),
        one(4, 8, 6, 8, gaps_s=[1.0, 1.0], error="late", is_late=True), one(4, 4, error="HTTP 429", status=429),
    ]  # fmt: skip
    load = load_of(answers, 2, 0.0, Window((), Neighbours(2)))
    assert (load.per_s, load.in_flight, load.seen_batch) == ((24 + 3) / 8, 2.0, 10 / 8)
    assert (load.num_answered, load.num_late, load.mean_batch) == (3, 1, None)


def test_gaps_begin_where_all_streams_have_begun():
    a = Answer(0, 9, 1.0, 4.0, gaps_s=[1.0, 1.0, 1.0])
    b = Answer(0, 9, 2.5, 4.5, gaps_s=[2.0, 0.00001])
    assert gaps_after_all_began([[a, b]]) == [1.0, 2.0]  # of a the last one; of b one, the other came in one piece
    prompt = Answer(2.6, 3.0, 2.9, 2.9)
    assert standstills([[a, b]], [prompt, Answer(8.0, 9.0, 8.5), Answer(2.6, 3.0, error="HTTP 400")]) == [2.0]


def test_a_closed_loop_sends_what_it_is_told_and_stops_in_time():
    sent = []

    async def send(n):
        sent.append(n)
        return Answer(0.0)

    answers = asyncio.run(closed_loop(send, 2, time.perf_counter() + 60, at_most=5))
    assert len(answers) == 5 and sorted(sent) == [0, 1, 2, 3, 4]
    assert len(asyncio.run(closed_loop(send, 3, 0.0))) == 3  # one each, however late


def test_numbers_but_no_counts_and_times():
    document = {"data": [{"index": 7, "embedding": [1, 2.5]}], "usage": {"total_tokens": 9}, "id": 4, "ok": True}
    assert list(numbers_in(document)) == [1.0, 2.5]


def test_a_server_of_its_own_is_started_checked_and_stopped(tiny_model, monkeypatch, tmp_path):
    monkeypatch.setattr(live, "_QUICK_S", 1.0)
    monkeypatch.setattr(live, "_LEAST_S", 2.0)
    monkeypatch.delenv("AIE_API_KEY", raising=False)
    path = tmp_path / "found.json"
    arguments = [
        "--live",
        str(tiny_model),
        "--quick",
        "--serve-args",
        f"--threads {available_cores() + 1}",
        "--json",
        str(path),
    ]
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    result = CliRunner().invoke(app, ["doctor", *arguments])
    found = json.loads(path.read_text())
    assert result.exit_code in (0, 1) and found["complete"] and found["server"] == "aie"
    by_name = {one["what"]: one for one in found["findings"]}
    assert by_name["threads of the server"]["level"] == "bad" and "request after the start" in str(by_name)
    left = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_interrupt_says_what_was_found_and_leaves_nothing(scripted, tmp_path):
    path = tmp_path / "found.json"
    begun = threading.Event()

    def answer(path, body, number, crowd):
        if number > 3:
            begun.set()
            time.sleep(0.2)
        return echo(path, body, number, crowd)

    scripted.answer = answer
    process = subprocess.Popen(
        [sys.executable, "-m", "aie", "doctor", "--url", scripted.url, "--json", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert begun.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err and "Interrupted" in err
    assert "swap" in out and json.loads(path.read_text())["complete"] is False
