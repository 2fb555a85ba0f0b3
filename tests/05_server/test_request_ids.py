"""X-Request-Id: in every answer, whatever it is, and under the same name in the log."""

import logging
import socket
from typing import Any

import pytest

from aie_server import HttpLimits, ServerConfig

HOSTILE = ["a b", "x" * 129, "new\tline", '"quoted"', "{}", "é", "a, b"]


def access_lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    lines: list[Any] = [record for record in caplog.records if record.name == "aie.access"]
    for line in lines:
        line.fields = line.fields()  # as one who writes them would
    return lines


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n", 200),
        (b"GET /nowhere HTTP/1.1\r\nHost: t\r\n\r\n", 404),
        (b"POST /version HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n", 405),
        (b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\n{", 400),
        (b"no request at all\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: t\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/9.9\r\nHost: t\r\n\r\n", 505),
    ],
)
def test_every_answer_has_one_and_its_line_in_the_log_too(
    harness: Any, caplog: pytest.LogCaptureFixture, sent: bytes, status: int
) -> None:
    caplog.set_level(logging.INFO, "aie.access")
    answer = harness.connect().send(sent).answer()
    assert answer.status == status
    harness._servers[-1].close()
    (line,) = access_lines(caplog)
    assert line.fields["request_id"] == answer.headers["X-Request-Id"] != ""
    assert line.fields["status"] == status and line.getMessage().endswith(answer.headers["X-Request-Id"])
    assert ("error" in line.fields) is (status >= 400)


def test_a_stream_has_the_clients_own(harness: Any) -> None:
    client = harness.connect()
    client.post("/v1/completions", {"prompt": "hi", "stream": True}, {"X-Request-Id": "mine:1"})
    assert client.answer().headers["X-Request-Id"] == "mine:1"


@pytest.mark.parametrize("offered", HOSTILE)
def test_a_harmful_one_is_replaced_in_answers_and_in_the_log(
    harness: Any, caplog: pytest.LogCaptureFixture, offered: str
) -> None:
    caplog.set_level(logging.INFO, "aie.access")
    head = f"GET /version HTTP/1.1\r\nHost: t\r\nX-Request-Id: {offered}\r\n\r\n"
    answer = harness.connect().send(head.encode("latin-1")).answer()
    assert answer.status == 200 and answer.headers["X-Request-Id"] not in ("", offered)
    harness._servers[-1].close()
    (line,) = access_lines(caplog)
    assert line.fields["request_id"] == answer.headers["X-Request-Id"] and offered not in line.getMessage()


def test_two_of_them_are_none(harness: Any) -> None:
    head = b"GET /version HTTP/1.1\r\nHost: t\r\nX-Request-Id: one\r\nX-Request-Id: two\r\n\r\n"
    assert harness.connect().send(head).answer().headers["X-Request-Id"] not in ("one", "two", "one, two")


def test_who_is_turned_away_before_being_read_has_one_too(harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aie.access")
    server = harness.serve(config=ServerConfig(http=HttpLimits(max_connections=1)))
    first = harness.connect().send(b"GET /ver")  # busy from its first byte on
    while server.num_busy_connections == 0:
        pass
    answer = harness.connect().answer()
    assert answer.status == 503 and answer.error["code"] == "too_many_connections"
    first.close()
    server.close()
    (line,) = [one for one in access_lines(caplog) if one.fields["status"] == 503]
    assert line.fields["request_id"] == answer.headers["X-Request-Id"]
    assert line.fields["error"] == "too_many_connections"


def test_the_line_says_what_was_asked_of_which_model(harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aie.access")
    harness.complete(["ab", "c"], max_tokens=5)
    harness._servers[-1].close()
    (line,) = access_lines(caplog)
    facts = {key: line.fields[key] for key in ("model", "prompt_tokens", "completion_tokens", "finish_reasons")}
    assert facts == {
        "model": "fake", "prompt_tokens": 3, "completion_tokens": 10, "finish_reasons": ["length", "length"],
    }  # fmt: skip
    assert line.fields["duration_ms"] > 0 and line.fields["bytes"] > 100


def test_a_client_that_hangs_up_in_the_middle_of_its_head_has_a_line(
    harness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aie.access")
    client = harness.connect().send(b"GET /version HTT")
    client.sock.shutdown(socket.SHUT_WR)
    assert client.is_closed_by_peer()
    harness._servers[-1].close()
    (line,) = access_lines(caplog)
    assert line.fields["status"] == 499 and line.fields["request_id"]
