"""The load generator against servers that answer what no server should: never an exception, always a few words."""

import asyncio
import json
import os
import ssl

import pytest

from aie.bench.arrivals import Rate
from aie.bench.client import HUNG_UP, Endpoint, Outcome, describe_error, get_text, send_streaming
from aie.bench.find_max import Probe, Search, find_max
from aie.bench.generator import Call
from aie.bench.generator.ask import Asker
from aie.bench.generator.event_reader import EventReader
from aie.bench.load import LevelResult
from aie.bench.notes import notes
from aie.bench.options import BenchOptions
from aie.bench.probing import probe_level
from aie.bench.questions import ask_inputs
from aie.bench.report import summarize
from aie.bench.show import shown
from aie.bench.slo import parse_slo
from aie.bench.steady import steady_window
from aie.bench.streaming import StreamingReport
from aie.bench.streaming_plan import Traffic, open_level
from aie.bench.target import reach
from aie.memdebug.remote import fetch
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

    for size in (1, 2, 3, len(whole)):
        reader = EventReader()
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert [payload for piece in pieces for payload in reader.feed(piece)] == [b"1", b"2", b"3"]


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


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"", EnvironmentLacksError, "stopped answering: the connection was closed before an answer"),
        (HEAD + b"[" * 100_000, InvalidInputError, "does not say"),
        (HEAD + b'{"inputs": [{"name": "a", "datatype": "FP32", "shape": [1, 1e999]}]}', InvalidInputError, "not say"),
    ],
)
def test_a_model_that_is_described_badly(answer, error, says):
    with pytest.raises(error, match=says):
        answered(answer, lambda endpoint: asyncio.to_thread(ask_inputs, endpoint, "m"))


def test_a_memory_that_is_described_badly():
    with pytest.raises(InvalidInputError):
        answered(HEAD + b"[" * 100_000, lambda endpoint: asyncio.to_thread(fetch, endpoint.url, None, None))
    with pytest.raises(EnvironmentLacksError, match="closed before an answer"):
        answered(b"", lambda endpoint: asyncio.to_thread(fetch, endpoint.url, None, None))


def test_answers_at_once_are_read_as_carefully():
    async def ask(endpoint):
        outcome = Outcome()
        await Asker(endpoint, 10).ask(Call("/v1/embeddings", b"{}", answer="whole", keep_alive=True), outcome)
        return outcome

    assert answered(b"HTTP/1.1 500 X\r\n\r\n<b>\n\x1b[31moops", ask).error == "HTTP 500: <b> ?[31moops"
    assert answered(b"", ask).error == "the connection was closed before an answer"


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


def test_an_answer_whose_tokens_nobody_counted_has_one_for_each_event():
    outcome = streamed(HEAD + TEXT * 3 + DONE)
    assert (outcome.num_output_tokens, outcome.is_counted) == (3, False)
    row = summarize(LevelResult(1, [outcome], 1.0))
    assert row.output_tokens_per_s == 3.0 and any("did not say how many tokens" in line for line in notes([row]))


def outcome(error=None, tokens=2, due=None, lag=0.0):
    due_s = 0.0 if due is None else due
    return Outcome(
        due_s + lag, due_s + lag + 0.1, due_s + lag + 0.2, due_s + lag + 0.3, 5, tokens, 200, error, [0.1], due,
        first_byte_s=due_s + lag + 0.1,
    )  # fmt: skip


def test_tokens_of_answers_that_were_cut_are_in_neither_rate():
    outcomes = [outcome(), outcome("the stream was cut off")]
    window = steady_window(outcomes)
    assert window.tokens == summarize(LevelResult(2, outcomes, 1.0)).output_tokens == 2


def test_who_hung_up_as_asked_breaks_no_promise_of_the_server():
    slo = parse_slo("ttft_p99<500ms")
    assert slo.broken_by([outcome(), outcome(HUNG_UP)]) == []
    assert slo.broken_by([outcome(), outcome("HTTP 500")]) == ["ttft_p99<500ms: no answer"]


def test_late_by_a_cap_is_no_fault_of_the_load_generator():
    late = [outcome(due=float(at), lag=2.0) for at in range(5)]
    row = summarize(LevelResult(1, late, 5.0, offered_per_s=1.0, max_in_flight=1))
    assert not row.is_client_bound and any("2000 ms late, since no more than 1" in line for line in notes([row]))
    assert summarize(LevelResult(1, late, 5.0, offered_per_s=1.0)).is_client_bound


def test_a_level_without_requests_is_no_fault_of_anyone():
    row = summarize(LevelResult(0, [], 1e-4, offered_per_s=1.0, client_cpu=0.99))
    assert not row.is_client_bound and any("no request was due" in line for line in notes([row]))


def test_a_search_that_holds_nothing_ends_and_fails():
    search = Search()
    find_max(lambda rate: Probe(rate, ("ttft",)), 1.0, search)
    assert [one.rate for one in search.probes] == [1.0, 0.5, 0.25, 0.125, 0.0625]
    assert StreamingReport(search=search).failed
    search.probes.append(Probe(0.03, ()))
    assert not StreamingReport(search=search).failed


def test_a_probe_of_a_low_rate_takes_as_long_as_it_needs():
    traffic, options = Traffic((4, 4), (4, 4)), BenchOptions(slo="ttft<1s", find_max=True, duration=1.0)
    assert len(probe_level(traffic, 0.5, options).due) == 5
    assert probe_level(traffic, 100.0, options).due[-1] < 1.0
    assert len(probe_level(traffic, 0.5, BenchOptions(slo="ttft<1s", find_max=True, requests=2)).due) == 2


@pytest.mark.parametrize("kind", ["constant", "poisson", "gamma"])
def test_as_many_requests_are_sent_as_were_asked_for(kind):
    def level(**limits):
        traffic = Traffic((4, 4), (4, 4))
        return open_level(traffic, Rate(5.0, 5.0), kind=kind, burstiness=1.0, max_in_flight=None, **limits)

    for count in (1, 7, 50):
        many = level(requests=count, duration_s=None)
        assert len(many.due) == len(many.requests) == count
        assert many.due == level(requests=50, duration_s=None).due[:count]
    assert level(requests=50, duration_s=2.0).due[-1] < 2.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"arrivals": "gamma"}, "give --rate"),
        ({"burstiness": 0.5}, "give --rate"),
        ({"rate": "5", "burstiness": 0.5}, "--arrivals gamma"),
        ({"rate": "0.1", "duration": 5.0}, "less than one request"),
    ],
)
def test_flags_that_would_do_nothing(options, says):
    with pytest.raises(InvalidInputError, match=says):
        BenchOptions(**options)


def test_files_are_written_though_nobody_reads_what_is_printed():
    def fails(error):
        def show():
            raise error

        return shown(show)

    full = OSError(28, os.strerror(28))
    assert fails(full) is full and fails(BrokenPipeError()) is None

    def as_rich_does():
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904  # as rich does

    assert shown(as_rich_does) is None
    with pytest.raises(SystemExit):
        fails(SystemExit(3))
