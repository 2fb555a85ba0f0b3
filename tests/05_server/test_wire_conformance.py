"""Raw bytes against a running server: what must be refused, what must be read, and whether the connection lives on."""

import json
import logging
from dataclasses import dataclass, replace
from typing import Any

import pytest

from aie_server import HttpLimits, ServerConfig

BODY = json.dumps({"prompt": "hi", "max_tokens": 3}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: t\r\n"
SMUGGLED = b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n"


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    status: int


def post_with(*headers: bytes, body: bytes = BODY) -> bytes:
    return POST + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
IN_CHUNKS = b"5\r\n" + BODY[:5] + b"\r\n%X;ext=1\r\n" % (len(BODY) - 5) + BODY[5:] + b"\r\n0\r\n\r\n"

REFUSED = [
    Case("two lengths that differ", post_with(LENGTH, b"Content-Length: 0"), 400),
    Case("two lengths, smuggling", post_with(b"Content-Length: 0", b"Content-Length: 46", body=SMUGGLED), 400),
    Case("two equal lengths", post_with(LENGTH, LENGTH), 400),
    Case("length list", post_with(b"Content-Length: 4, 4"), 400),
    Case("length and chunked", post_with(LENGTH, CHUNKED, body=IN_CHUNKS), 400),
    Case("chunked twice", post_with(CHUNKED, CHUNKED, body=IN_CHUNKS), 400),
    Case("unknown coding", post_with(b"Transfer-Encoding: gzip, chunked", body=IN_CHUNKS), 501),
    Case("chunked in HTTP/1.0", b"POST /v1/completions HTTP/1.0\r\n" + CHUNKED + b"\r\n\r\n" + IN_CHUNKS, 400),
    Case("length +4", post_with(b"Content-Length: +4"), 400),
    Case("length 1_0", post_with(b"Content-Length: 1_0"), 400),
    Case("length -1", post_with(b"Content-Length: -1"), 400),
    Case("length 0x10", post_with(b"Content-Length: 0x10"), 400),
    Case("length empty", post_with(b"Content-Length: "), 400),
    Case("length non-ASCII digits", post_with("Content-Length: ٣".encode()), 400),
    Case("length of 40 digits", post_with(b"Content-Length: " + b"9" * 40), 400),
    Case("space before the colon", post_with(b"Content-Length : 4"), 400),
    Case("line without a colon", post_with(LENGTH, b"junk"), 400),
    Case("empty header name", post_with(LENGTH, b": x"), 400),
    Case("folded header", post_with(LENGTH, b"X-A: 1\r\n more"), 400),
    Case("bare line feed", b"GET /version HTTP/1.1\nHost: t\n\n", 400),
    Case("bare line feed between headers", b"GET /version HTTP/1.1\r\nHost: t\nX: y\r\n\r\n", 400),
    Case("NUL in a value", GET + b"X: a\0b\r\n\r\n", 400),
    Case("carriage return in a value", GET + b"X: a\rb\r\n\r\n", 400),
    Case("no Host", b"GET /version HTTP/1.1\r\n\r\n", 400),
    Case("two Hosts", GET + b"Host: other\r\n\r\n", 400),
    Case("Host with a space", b"GET /version HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    Case("101 headers", GET + b"".join(b"X-%d: 1\r\n" % i for i in range(100)) + b"\r\n", 431),
    Case("header line of 64 KiB", GET + b"X: " + b"a" * 65536 + b"\r\n\r\n", 431),
    Case("headers of 40 KiB", GET + b"".join(b"X-%d: %b\r\n" % (i, b"a" * 800) for i in range(50)) + b"\r\n", 431),
    Case("URI of 64 KiB", b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\nHost: t\r\n\r\n", 414),
    Case("HTTP/9.9", b"GET / HTTP/9.9\r\nHost: t\r\n\r\n", 505),
    Case("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    Case("no version", b"GET /\r\n\r\n", 400),
    Case("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    Case("two spaces", b"GET  / HTTP/1.1\r\nHost: t\r\n\r\n", 400),
    Case("target that is no path", b"GET x HTTP/1.1\r\nHost: t\r\n\r\n", 400),
    Case("POST without length", post_with(), 411),
    Case("10 GB announced", post_with(b"Content-Length: 10000000000", body=b""), 413),
    Case("10 GB expected", post_with(b"Content-Length: 10000000000", b"Expect: 100-continue", body=b""), 413),
    Case("unknown expectation", post_with(LENGTH, b"Expect: a-pony"), 417),
    Case("chunk size not hexadecimal", post_with(CHUNKED, body=b"zz\r\n"), 400),
    Case("chunk size with sign", post_with(CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n"), 400),
    Case("chunk size of 20 digits", post_with(CHUNKED, body=b"F" * 20 + b"\r\n"), 400),
    Case("chunk of 4 GB", post_with(CHUNKED, body=b"FFFFFFFF\r\n"), 413),
    Case("chunk longer than it says", post_with(CHUNKED, body=b"2\r\nhello\r\n0\r\n\r\n"), 400),
    Case("chunk extension of 1 KiB", post_with(CHUNKED, body=b"5;" + b"x" * 1024 + b"\r\nhello\r\n0\r\n\r\n"), 400),
    Case("chunk line ended by LF", post_with(CHUNKED, body=b"5\nhello\r\n0\r\n\r\n"), 400),
    Case("a hundred trailers", post_with(CHUNKED, body=b"0\r\n" + b"X: y\r\n" * 100 + b"\r\n"), 431),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused_with_a_status_and_a_closed_connection(harness: Any, case: Case) -> None:
    client = harness.connect().send(case.data + SMUGGLED)
    answer = client.answer()
    assert answer.status == case.status
    assert answer.headers["Connection"] == "close"
    assert answer.error["code"]
    assert client.is_closed_by_peer(), "the request after it was answered"
    assert harness.engine.requests == []


READ = [
    Case("length", post_with(LENGTH), 200),
    Case("chunked", post_with(CHUNKED, body=IN_CHUNKS), 200),
    Case("chunked in capitals", post_with(b"transfer-ENCODING: Chunked", body=IN_CHUNKS), 200),
    Case("chunked with a trailer", post_with(CHUNKED, body=IN_CHUNKS[:-2] + b"X: y\r\n\r\n"), 200),
    Case("leading zeros", post_with(b"Content-Length: 00%d" % len(BODY)), 200),
    Case("absolute target", b"GET http://t/version HTTP/1.1\r\nHost: t\r\n\r\n", 200),
    Case("empty line before", b"\r\n" + GET + b"\r\n", 200),
    Case("body with GET", GET + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED, 200),
    Case("query", b"GET /version?x=1 HTTP/1.1\r\nHost: t\r\n\r\n", 200),
]


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_read_to_its_end_so_that_the_next_request_is_answered_too(harness: Any, case: Case) -> None:
    client = harness.connect().send(case.data + SMUGGLED)
    assert client.answer().status == case.status
    following = client.answer()
    assert (following.status, set(following.json)) == (200, {"version", "python"})


def test_one_byte_at_a_time(harness: Any) -> None:
    client = harness.connect()
    for byte in post_with(LENGTH):
        client.send(bytes([byte]))
    assert client.answer().status == 200


def test_expected_body_is_asked_for(harness: Any) -> None:
    client = harness.connect().send(POST + LENGTH + b"\r\nExpect: 100-continue\r\n\r\n")
    assert client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
    assert client.send(BODY).answer().status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /nowhere HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 404),
        (b"POST /version HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 405),
    ],
)
def test_refusal_that_needs_no_body_does_not_ask_for_it(harness: Any, data: bytes, status: int) -> None:
    client = harness.connect().send(data)
    assert client.answer().status == status
    assert client.is_closed_by_peer()


def test_http_1_0_gets_an_answer_and_a_closed_connection(harness: Any) -> None:
    client = harness.connect().send(b"GET /version HTTP/1.0\r\n\r\n")
    answer = client.answer()
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert client.is_closed_by_peer()


def test_http_1_0_keep_alive(harness: Any) -> None:
    client = harness.connect()
    for _ in range(2):
        answer = client.send(b"GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer()
        assert (answer.status, answer.headers["Connection"]) == (200, "keep-alive")


def test_http_1_0_stream_ends_with_the_connection(harness: Any) -> None:
    body = json.dumps({"prompt": "hi", "stream": True}).encode()
    client = harness.connect().send(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    status, headers = client.head()
    assert (status, headers["Connection"], "Transfer-Encoding" in headers) == (200, "close", False)
    client.read_until(b"data: [DONE]\n\n")
    assert client.is_closed_by_peer()


def test_mutated_requests_are_answered_or_refused(harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One byte of a good request changed, dropped or doubled, everywhere in turn; the server must stay itself."""
    server = harness.serve(config=ServerConfig(http=replace(HttpLimits(), body_timeout_s=0.02, header_timeout_s=0.02)))
    good = post_with(LENGTH)
    for position in range(len(good)):
        byte = good[position : position + 1]
        for changed in (b"", byte * 2, b"\n", b"\0", b":", b"9"):
            client = harness.connect(server).send(good[:position] + changed + good[position + 1 :])
            assert client.answer().status in (200, 400, 404, 405, 408, 411, 413, 414, 431, 501, 505)
            client.close()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert harness.connect(server).send(SMUGGLED).answer().status == 200


LIMITED = replace(HttpLimits(), max_body_bytes=100, max_body_chunks=4)


@pytest.mark.parametrize(
    "body",
    [b"33\r\n" + b"a" * 0x33 + b"\r\n32\r\n" + b"a" * 0x32 + b"\r\n0\r\n\r\n", b"1\r\na\r\n" * 50],
    ids=["chunks together too large", "endless one-byte chunks"],
)
def test_chunked_body_is_bounded(harness: Any, body: bytes) -> None:
    harness.serve(config=ServerConfig(http=LIMITED))
    assert harness.connect().send(post_with(CHUNKED, body=body)).answer().status == 413


def test_pipelined_requests_are_answered_in_order(harness: Any) -> None:
    requests = [GET + b"\r\n", post_with(LENGTH), SMUGGLED, b"GET /nowhere HTTP/1.1\r\nHost: t\r\n\r\n", GET + b"\r\n"]
    client = harness.connect().send(b"".join(requests))
    assert [client.answer().status for _ in requests] == [200, 200, 200, 404, 200]
