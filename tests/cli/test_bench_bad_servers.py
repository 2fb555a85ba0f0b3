"""The whole command against servers that are broken: a clear line, a report that is valid, the right exit code."""

import json
import socketserver
import sys
import threading

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.generator import Endpoint
from aie_engine import EnvironmentLacksError, InvalidInputError

MODELS = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"data": [{"id": "m"}]}'
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
TEXT = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'


class Broken(socketserver.StreamRequestHandler):
    """Lists a model, and answers every question with `server.answer`; None: never, until the test is over."""

    def handle(self):
        first = self.rfile.readline()
        length = 0
        while (line := self.rfile.readline().strip()) != b"":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.rfile.read(length)
        if first.startswith(b"GET"):
            self.wfile.write(MODELS if b"/v1/models" in first else b"HTTP/1.1 404 no\r\n\r\n")
        elif self.server.answer is None:
            self.server.is_over.wait()
        else:
            self.wfile.write(self.server.answer)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64


@pytest.fixture
def serving():
    servers = []

    def start(answer):
        server = Server(("127.0.0.1", 0), Broken)
        server.answer, server.is_over = answer, threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in servers:
        server.is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def bench(url, tmp_path, *more):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "rows", "markdown", "html")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    return CliRunner().invoke(app, ["bench", "--url", url, "--ui", "none", *words, *more]), files


@pytest.mark.parametrize(
    ("answer", "end", "says"),
    [
        (b"\x00\xff SSH-2.0\r\n\r\n", "failed", "garbled answer (the answer is not HTTP/1.1)"),
        (HEAD + TEXT + b'data: {"choi', "cut", "the stream was cut off"),
        (b"", "failed", "the connection was closed before an answer"),
        (None, "timed out", "no complete answer within 0.3 s"),
        (b"HTTP/1.1 503 full\r\nContent-Length: 4\r\n\r\nfull", "rejected", "HTTP 503: full"),
    ],
)
def test_what_went_wrong_is_a_line_and_the_report_is_whole(serving, tmp_path, answer, end, says):
    run, files = bench(serving(answer), tmp_path, "--concurrency", "2", "--requests", "3", "--timeout-s", "0.3")
    assert run.exit_code == 1 and f"3 × {says}" in run.output
    document = json.loads(files["json"].read_text())
    [level] = document["levels"]
    assert document["complete"] and (level["requests"], level["answered"], level["failed"]) == (3, 0, 3)
    assert level["ends"][end] == 3 and level["e2e"]["count"] == 0 and level["e2e"]["p50"] is None
    assert {json.loads(line)["end"] for line in files["rows"].read_text().splitlines()} == {end}
    for name in ("html", "markdown"):
        assert says in files[name].read_text() and "0/3" in files[name].read_text()


def test_a_search_on_a_server_that_is_broken_ends_at_once(serving, tmp_path):
    url = serving(b"HTTP/1.1 500 oh\r\nContent-Length: 4\r\n\r\noops")
    run, files = bench(url, tmp_path, "--find-max", "--slo", "ttft_p90<1s", "--requests", "3", "--arrivals", "constant")
    assert run.exit_code == 1 and "every request failed: HTTP 500: oops (1 probe)" in run.output
    document = json.loads(files["json"].read_text())
    assert document["find_max"]["held_per_s"] is None and len(document["find_max"]["probes"]) == 1
    assert "Probes of the search" in files["html"].read_text()


def test_nobody_there_is_a_sentence(tmp_path):
    run, _ = bench("http://127.0.0.1:9", tmp_path)
    assert isinstance(run.exception, EnvironmentLacksError) and run.exception.exit_code == 3
    assert (
        str(run.exception) == "No server answers at http://127.0.0.1:9: Connection refused. Start one with `aie serve`."
    )
    run, _ = bench("https://127.0.0.1:9", tmp_path)
    assert "aie serve" not in str(run.exception)


def test_what_stands_in_the_way_of_the_first_question_is_named(serving, tmp_path, monkeypatch):
    asks = b"HTTP/1.1 401 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    monkeypatch.setattr(sys.modules[__name__], "MODELS", asks)
    url = serving(None)
    run, _ = bench(url, tmp_path)
    assert str(run.exception) == f"{url} asks for a key (status 401); give the --api-key that it takes."
    assert run.exception.exit_code == 2
    run, _ = bench(url, tmp_path, "--api-key", "wrong")
    assert "--api-key is not one that it takes" in str(run.exception)
    monkeypatch.setattr(sys.modules[__name__], "MODELS", b"\x15\x03\x03\x00\x02\x02\x46")  # an alert of TLS
    run, _ = bench(url, tmp_path)
    assert run.exception.exit_code == 3 and "where it speaks TLS, the URL begins with https://" in str(run.exception)


def test_a_name_of_the_server_does_nothing_to_the_terminal(serving, tmp_path, monkeypatch):
    head, _, _ = MODELS.partition(b"{")
    monkeypatch.setattr(sys.modules[__name__], "MODELS", head + b'{"data": [{"id": "m\\u001b[2J' + b"x" * 999 + b'"}]}')
    answer = HEAD + TEXT + b"data: [DONE]\n\n"
    run, _ = bench(serving(answer), tmp_path, "--concurrency", "1", "--requests", "1")
    assert run.exit_code == 0 and "m?[2Jxxx" in run.output and "\x1b" not in run.output
    assert "x" * 200 not in run.output


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX-Evil: 1", "schlüssel", "\x00"])
def test_a_key_that_no_header_can_hold_is_not_sent(key):
    with pytest.raises(InvalidInputError, match="--api-key has line ends or other characters"):
        Endpoint.parse("http://127.0.0.1:9", key)
