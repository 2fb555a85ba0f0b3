"""`aie top` and servers that behave badly, over real sockets: one sentence each."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from aie.bench.client import Endpoint
from aie.top.history import History
from aie.top.look import explain_request, look_at
from aie.top.screen import draw, plain_lines
from aie.top.summary import document
from aie_engine import EnvironmentLacksError, InvalidInputError

AN_OPEN_ONE = '{"open": [%s], "recent": [], "queues": {}, "num_open_of_others": 0, "unanswered": {}}'


def http(body: str | bytes, status: str = "200 OK") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ((), "No server of models answers at"),
        ((b"\x00\xff\n\r\n",), "No server of models answers at"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc",), "it closed the connection"),
        ((http("<html>hello</html>"),), "/metrics is no Prometheus text: line 1 is no sample"),
        ((http("up 1\n"),), "has no metrics of a server of models"),
        ((http("", "401 Unauthorized"),), "/metrics asks for a key (HTTP 401); give --api-key, or AIE_API_KEY"),
        ((http("", "404 Not Found"),), "has no /metrics. It may have been started without metrics"),
        ((http("", "500 Oh no"),), "/metrics answers HTTP 500"),
    ],
)
def test_one_sentence_and_code_3(top: Any, answers: tuple[bytes, ...], sentence: str) -> None:
    with top.answering(*answers) as url:
        with pytest.raises(EnvironmentLacksError) as caught:
            look_at(Endpoint.parse(url))
        assert sentence in str(caught.value) and caught.value.exit_code == 3, caught.value


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http("{}", "404 Not Found"), "has no /debug/requests"),
        (http('{"error": {"message": "No."}}', "401 Unauthorized"), "asks for a key (HTTP 401)"),
        (http("garbage"), "answers HTTP 200"),
        (http('{"open": 3}'), "answers what is no list of requests"),
        (http(AN_OPEN_ONE % '{"state": "waiting", "total_us": 3}'), "answers what is no list of requests"),
        (
            http(AN_OPEN_ONE % '{"request_id": "r", "state": "x", "total_us": "3"}'),
            "answers what is no list of requests",
        ),
        (http(AN_OPEN_ONE % '{"request_id": "r", "state": "x", "total_us": NaN}'), "answers HTTP 200"),
        (http("[" * 100_000), "answers HTTP 200"),
        (http('{"error": {"message": "Too much.", "code": "x"}}', "503 No"), "answers HTTP 503: Too much"),
        (b"", "it closed the connection"),
    ],
)
def test_without_requests_there_are_still_figures(top: Any, answer: bytes, why: str) -> None:
    with top.answering(top.METRICS, answer) as url:
        look = look_at(Endpoint.parse(url), clock=lambda: 5.0)
    assert look.requests is None and look.why_no_requests is not None and why in look.why_no_requests
    assert look.at_s == 5.0 and look.figures.models["tiny"].gauges["running"] == 3


def test_a_key_that_is_refused_is_no_half_success(top: Any) -> None:
    refused = pytest.raises(EnvironmentLacksError, match="give another --api-key")
    with top.answering(top.METRICS, http("{}", "401 Unauthorized")) as url, refused:
        look_at(Endpoint.parse(url, "wrong"))


def test_a_request_that_is_forgotten_and_a_server_that_has_none(top: Any) -> None:
    gone = http('{"error": {"message": "It is forgotten.", "code": "request_not_found"}}', "404 Not Found")
    with top.answering(gone, http("{}", "404 Not Found")) as url:
        with pytest.raises(InvalidInputError, match="It is forgotten"):
            explain_request(Endpoint.parse(url), "mine")
        with pytest.raises(EnvironmentLacksError, match="has no /debug/requests"):
            explain_request(Endpoint.parse(url), "mine")


def test_a_request_of_another_shape_is_no_request(top: Any) -> None:
    strange = http('{"request_id": "r", "state": "done", "total_us": 5, "path": "/", "model": "m", "choices": [7]}')
    with top.answering(strange) as url, pytest.raises(EnvironmentLacksError, match="answers what is no request"):
        explain_request(Endpoint.parse(url), "r")


def test_what_is_no_finite_number_was_not_told(top: Any) -> None:
    figures = dict.fromkeys(top.FIRST, "-Inf") | {"generated": "NaN"}
    with top.answering(http(top.OURS.format(**figures))) as url:
        look = look_at(Endpoint.parse(url))
    history = History()
    history.add(look)
    assert top.text_of(draw(history, "u", when="now")) and all("inf" not in line for line in plain_lines(history))
    json.dumps(document(history, "u"), allow_nan=False)


def test_tls_where_there_is_none_is_said_so(top: Any) -> None:
    with top.answering(http("")) as url, pytest.raises(EnvironmentLacksError, match="no TLS there"):
        look_at(Endpoint.parse(url.replace("http:", "https:")))


def test_ended_by_a_signal_it_gives_the_terminal_back(top: Any) -> None:
    with top.answering(*[top.METRICS, http("{}", "404 Not Found")] * 50) as url:
        ours, its = pty.openpty()
        process = subprocess.Popen([sys.executable, "-m", "aie", "top", url, "--interval", "60"], stdout=its)
        os.close(its)
        shown, is_ended = b"", False
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(ours, 65536):
                shown += piece
                if not is_ended and b"\x1b[?1049h" in shown and b"tiny" in shown:
                    process.terminate()
                    is_ended = True
        assert process.wait(30) == 0
        os.close(ours)
    assert b"\x1b[?1049l" in shown and b"\x1b[?25h" in shown, "its screen, and its cursor"
