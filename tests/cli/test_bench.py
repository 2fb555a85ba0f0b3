"""The load generator against a scripted server whose every delay and fault is known."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from aie.bench.client import HUNG_UP, Endpoint, Outcome, send_streaming
from aie.bench.load import LevelResult, Sampler, run_level
from aie.bench.report import summarize
from aie.bench.statistics import percentile
from aie.bench.target import reach
from aie.bench.workload import parse_lengths, plan_requests
from aie_engine import EnvironmentLacksError, InvalidInputError


def event(payload):
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def text(piece):
    return event({"choices": [{"index": 0, "text": piece, "finish_reason": None}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})
GOOD = [text("a"), text("b"), text("c"), USAGE, event(b"[DONE]")]


@pytest.fixture
def server():
    """Answers with `server.events` as chunks; `server.status` other than 200 gives an error object."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            scripted.paths.append(self.path)
            body = scripted.gets.get(self.path, b"{}")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            scripted.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if scripted.status != 200:
                body = json.dumps({"error": {"message": "no room", "type": "x", "param": None, "code": None}}).encode()
                self.send_response(scripted.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in scripted.events:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if scripted.terminate:
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True

    scripted = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scripted.daemon_threads = True
    scripted.events, scripted.status, scripted.terminate = GOOD, 200, True
    scripted.gets, scripted.bodies, scripted.paths = {}, [], []
    scripted.endpoint = Endpoint("127.0.0.1", scripted.server_address[1], "", False)
    thread = threading.Thread(target=scripted.serve_forever, args=(0.01,))
    thread.start()
    yield scripted
    scripted.shutdown()
    thread.join()
    scripted.server_close()


def send(server):
    return asyncio.run(send_streaming(server.endpoint, "/v1/completions", {"prompt": "x"}, timeout_s=10))


def test_a_full_answer(server):
    outcome = send(server)
    assert outcome.error is None
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens, outcome.status) == (5, 3, 200)
    assert 0 < outcome.ttft_s <= outcome.e2e_s
    assert outcome.tpot_s >= 0


def test_events_split_anywhere(server):
    whole = b"".join(GOOD)
    server.events = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    outcome = send(server)
    assert outcome.error is None and outcome.num_output_tokens == 3


@pytest.mark.parametrize(
    ("events", "terminate", "message"),
    [
        (GOOD[:2], True, "the stream was cut off"),
        (GOOD[:2], False, "the connection was closed in mid-answer"),
        ([text("a"), event({"error": {"message": "engine died"}}), event(b"[DONE]")], True, "error event: engine died"),
        ([event(b"{not json")], True, "garbled answer"),
        ([event(b"[1]")], True, "garbled answer"),
        ([USAGE, event(b"[DONE]")], True, "the answer had no text"),
        ([], True, "the stream was cut off"),
    ],
)
def test_broken_answers_are_named_and_never_raise(server, events, terminate, message):
    server.events, server.terminate = events, terminate
    assert message in send(server).error


def test_error_status(server):
    server.status = 503
    outcome = send(server)
    assert outcome.error == "HTTP 503: no room" and outcome.status == 503


def test_not_http_at_all(scripted):
    async def garbage(_asked, writer):
        writer.write(b"SSH-2.0-whatever\r\n\r\n")

    async def talk():
        async with scripted(garbage) as listener:
            return await send_streaming(listener.endpoint, "/", {}, timeout_s=10)

    assert "not HTTP" in asyncio.run(talk()).error


def test_a_level_sends_every_request_once_and_counts_failures(server):
    planned = plan_requests(20, input_tokens=(3, 9), output_tokens=(2, 5), seed=1)
    sampler = Sampler(server.endpoint, None, lambda: 123)
    result = asyncio.run(run_level(server.endpoint, "m", planned, 4, sampler=sampler, timeout_s=10))
    assert sorted(b["prompt"] for b in server.bodies) == sorted(p.prompt for p in planned)
    assert {b["model"] for b in server.bodies} == {"m"}
    row = summarize(result)
    assert (row.requests, row.answered, row.failed, row.output_tokens) == (20, 20, 0, 60)
    server.status = 429
    row = summarize(asyncio.run(run_level(server.endpoint, "m", planned, 4, sampler=sampler, timeout_s=10)))
    assert (row.requests, row.answered, row.failed) == (20, 0, 20)
    assert row.e2e.p50 is None and row.output_tokens_per_s == 0
    assert row.errors == {"HTTP 429: no room": 20}


def test_figures_are_exact():
    outcomes = [
        Outcome(sent_s=0.0, first_token_s=0.1 * k, last_token_s=0.1 * k + 0.4, end_s=1.0 * k, num_output_tokens=5)
        for k in range(1, 5)
    ]
    row = summarize(LevelResult(2, outcomes, wall_s=2.0))
    assert row.ttft.p50 == pytest.approx(200)
    assert row.tpot.max == pytest.approx(100) and row.tpot.p99 is None
    assert row.e2e.max == pytest.approx(4000) and row.e2e.mean == pytest.approx(2500)
    assert row.requests_per_s == pytest.approx(2.0)
    assert row.output_tokens_per_s == pytest.approx(10.0)


def test_percentile_is_nearest_rank():
    values = list(range(1, 101))
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7], 0.99), percentile([], 0.5)) == (
        50,
        99,
        7,
        None,
    )


def test_plan_is_seeded_and_different():
    def plan(seed):
        return plan_requests(50, input_tokens=(64, 192), output_tokens=(32, 96), seed=seed)

    assert plan(1) == plan(1) != plan(2)
    assert len({request.prompt for request in plan(1)}) == 50
    assert all(32 <= request.max_tokens <= 96 for request in plan(1))


@pytest.mark.parametrize("text_", ["", "x", "0", "-5", "9-3", "1-2-3", "99999999"])
def test_bad_lengths(text_):
    with pytest.raises(InvalidInputError):
        parse_lengths(text_, param="input-tokens")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999", "http://h:x"])
def test_bad_url(url):
    with pytest.raises(InvalidInputError):
        Endpoint.parse(url)


def test_endpoint_takes_the_url_as_people_write_it():
    assert Endpoint.parse("http://h:1/v1/") == Endpoint.parse("h:1") == Endpoint("h", 1, "", False)


def test_unreachable_server_is_one_sentence(server):
    with pytest.raises(EnvironmentLacksError, match="No server answers"):
        reach("http://127.0.0.1:1", None, None)
    with pytest.raises(InvalidInputError, match="OpenAI-compatible"):
        reach(f"http://127.0.0.1:{server.endpoint.port}", None, None)
    server.gets["/v1/models"] = b'{"data": [{"id": "first"}, {"id": "second"}]}'
    assert reach(f"http://127.0.0.1:{server.endpoint.port}", None, None).model == "first"


@pytest.mark.parametrize(("after", "num_events"), [(0, 0), (1, 1), (3, 3)])
def test_client_that_hangs_up(server, after, num_events):
    sending = send_streaming(server.endpoint, "/v1/completions", {}, timeout_s=30, hang_up_after=after)
    outcome = asyncio.run(sending)
    assert outcome.error == HUNG_UP
    assert (outcome.first_token_s is not None) == (num_events > 0)


def test_chat_sends_messages_and_reads_deltas(server):
    server.events = [event({"choices": [{"delta": {"content": "a"}}]}), USAGE, event(b"[DONE]")]
    planned = plan_requests(2, input_tokens=(3, 9), output_tokens=(2, 5), seed=1, shape="fixed")
    sampler = Sampler(server.endpoint, None, lambda: None)
    result = asyncio.run(run_level(server.endpoint, "m", planned, 1, sampler=sampler, timeout_s=10, chat=True))
    assert [outcome.error for outcome in result.outcomes] == [None, None]
    assert [body["messages"][0]["content"] for body in server.bodies] == [one.prompt for one in planned]
    assert all(len(one.prompt.split()) == 6 for one in planned)  # the mean of the bounds, at a word per token
