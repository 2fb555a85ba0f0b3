"""The load generator against servers that answer what no server should: never an exception, always a few words."""

import asyncio
import json
import ssl

import pytest

from aie.bench.at_once import run_at_once
from aie.bench.client import Endpoint, describe_error, get_text, send_streaming
from aie.bench.events import split_events
from aie.bench.load import Sampler
from aie.bench.questions import Question
from aie.bench.target import reach
from aie_engine import EnvironmentLacksError, InvalidInputError

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
TEXT = b'data: {"choices": [{"text": "a"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def answered(answer, ask):
    """Whatever `ask(endpoint)` gives, of a server that sends `answer` and closes."""

    async def talk():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1], "", False)
            return await ask(endpoint)

    return asyncio.run(talk())


def streamed(answer):
    return answered(answer, lambda endpoint: send_streaming(endpoint, "/v1/completions", {}, timeout_s=10))


def event(payload):
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": ["a"]},
        {"choices": {"a": 1}},
        {"choices": 5},
        {"choices": [{"delta": "a"}]},
        {"choices": [{"text": ["a"]}]},
        {"usage": {"prompt_tokens": [1]}},
        {"usage": {"completion_tokens": -5}},
        {"usage": {"completion_tokens": 1e300}},
    ],
)
def test_an_event_of_another_shape_is_an_error_of_its_request(payload):
    outcome = streamed(HEAD + TEXT + event(payload) + DONE)
    assert outcome.error.startswith("garbled answer (a")


def test_an_event_that_nests_without_end():
    assert streamed(HEAD + b"data: " + b"[" * 100_000 + b"\n\n").error == "garbled answer (an event that is no JSON)"


def test_an_event_without_end_is_not_read_for_ever():
    assert "4 MiB" in streamed(HEAD + b"data: " + b"a" * (5 << 20)).error


def test_an_error_that_is_none_is_no_error():
    usage = event({"choices": [], "error": None, "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    assert streamed(HEAD + event({"choices": [{"text": "a"}], "error": None}) + usage + DONE).error is None


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_lines_end_as_they_like_and_pieces_anywhere(end):
    whole = b": a comment" + end + end.join([b"event: x\ndata: 1", b"data:2", b"data: 3", b""])

    async def split(pieces):
        async def arriving():
            for piece in pieces:
                yield piece

        return [payload async for payload in split_events(arriving())]

    for size in (1, 2, 3, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert asyncio.run(split(pieces)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "the connection was closed before an answer"),
        (b"x" * (2 << 20), "garbled answer (the answer is not HTTP/1.1)"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "garbled answer (a chunk without its length)"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n", "garbled answer (a chunk without its length)"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "garbled answer (a Content-Length that is no number)"),
        (b"HTTP/1.1 307 X\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "HTTP 307: redirects are not followed"),
        (b"HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n", "HTTP 502"),
        (b"HTTP/1.1 500 X\r\n\r\n<b>\n\x1b[31moops", "HTTP 500: <b> ?[31moops"),
        (
            b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"choices": [{"text": "a"}]}',
            "one answer came, and not a stream of events",
        ),
    ],
)
def test_what_came_is_said_in_a_line(answer, error):
    assert streamed(answer).error == error


def test_a_body_with_a_length_is_read_as_it_comes():
    body = TEXT + event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}) + DONE
    assert streamed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body).error is None
    cut = streamed(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + TEXT)
    assert cut.first_token_s is not None and cut.error == "the connection was closed in mid-answer"


def test_a_body_without_end_is_given_up():
    with pytest.raises(ValueError, match="64 MiB"):
        answered(HEAD + b"x" * (65 << 20), lambda endpoint: get_text(endpoint, "/metrics"))


@pytest.mark.parametrize("answer", [b"x" * (2 << 20), b""])
def test_a_first_question_without_an_answer_is_one_sentence(answer):
    with pytest.raises(EnvironmentLacksError, match="No server answers"):
        answered(answer, lambda endpoint: asyncio.to_thread(reach, endpoint.url, None, None))


def test_a_list_of_models_that_nests_without_end():
    with pytest.raises(InvalidInputError, match="OpenAI-compatible"):
        answered(HEAD + b"[" * 100_000, lambda endpoint: asyncio.to_thread(reach, endpoint.url, None, None))


def test_answers_at_once_are_read_as_carefully():
    async def ask(endpoint):
        return await run_at_once(
            endpoint, "m", [Question("/v1/embeddings", b"{}")], 1, count=1, duration_s=None, timeout_s=10,
            sampler=Sampler(endpoint, None, lambda: None),
        )  # fmt: skip

    [outcome] = answered(b"HTTP/1.1 500 X\r\n\r\n<b>\n\x1b[31moops", ask).outcomes
    assert outcome.error == "HTTP 500: <b> ?[31moops"
    [outcome] = answered(b"", ask).outcomes
    assert outcome.error == "the connection was closed before an answer"


def test_tls_that_fails_is_said_without_its_library():
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1000)")
    error.reason = "WRONG_VERSION_NUMBER"
    assert describe_error(error) == "no TLS there: wrong version number"
    untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] …")
    untrusted.verify_message = "self-signed certificate"
    assert describe_error(untrusted) == "its certificate is not trusted: self-signed certificate"
    assert describe_error(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")) == "Connection refused"


@pytest.mark.parametrize("url", ["http://[::1]:8000/base", "http://127.0.0.1:8000/base"])
def test_an_address_is_written_as_it_is_read(url):
    assert Endpoint.parse(url).url == url
    assert Endpoint.parse(Endpoint.parse(url).url) == Endpoint.parse(url)
