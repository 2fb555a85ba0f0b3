"""`aie memdebug --url` and `watch`, against a scripted server."""

import itertools
import json
import threading
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from aie.memdebug.load import Load
from aie.memdebug.outputs import Outputs
from aie.memdebug.remote import fetch
from aie.memdebug.remote_run import http_plan, look_or_run, settled
from aie.memdebug.traffic import Mix
from aie.memdebug.watch import line, watch_server
from aie_engine import EnvironmentLacksError, InvalidInputError
from aie_tensor import PoolState, PoolStats, SlabState
from aie_tensor.memdebug import HeldGroup, MemorySnapshot

KV = HeldGroup("kv", "m", "e", "s", ("continuous.py:9 in grow",), 1, 4096, 4096, 1.0, ("r-812",))


def taken(num_requests=0, *groups, used=()):
    live = sum(group.nbytes for group in groups)
    stats = PoolStats(live, live, live, 0, 0, 0, live, live, len(groups), 1, 0, 0)
    pool = PoolState("host", "cpu", 1 << 34, stats, (), (), (SlabState("kv cache", 8, 4096, tuple(used)),))
    return MemorySnapshot(1, 0.0, "engine", 1, num_requests, 1, (pool,), groups, (), 1 << 30)


def error(message, code):
    return json.dumps({"error": {"message": message, "type": "x", "param": None, "code": code}}).encode()


@pytest.fixture
def server():
    """GETs are answered by `server.answer(path) -> (status, body)`; POSTs as a model does, or refused."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            scripted.keys.append(self.headers.get("Authorization"))
            status, body = scripted.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bad = body["model"] != "m" or not body["messages"] or body["temperature"] == "hot"
            bad = bad or not 0 < body["max_tokens"] <= 64
            scripted.posts.append("bad" if bad else "good")
            if bad:
                answer = error("no", "invalid_input")
                self.send_response(400)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 4)
            if body["max_tokens"] < 64:
                self.wfile.write(b"data: [DONE]\n\n")
            else:
                scripted.release.wait(30)  # never done by itself: whoever asked for so much hangs up

    scripted = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scripted.daemon_threads = True
    scripted.keys, scripted.posts, scripted.release = [], [], threading.Event()
    scripted.url = f"http://127.0.0.1:{scripted.server_address[1]}"
    scripted.answer = lambda path: (200, json.dumps({"m": taken().to_json()}).encode())
    thread = threading.Thread(target=scripted.serve_forever, args=(0.01,))
    thread.start()
    yield scripted
    scripted.release.set()
    scripted.shutdown()
    thread.join()
    scripted.server_close()


def test_one_look(server, capsys, tmp_path):
    outputs = Outputs(json_path=tmp_path / "r.json", snapshot=tmp_path / "s.json")
    assert look_or_run(server.url, None, "secret", None, outputs) is True
    assert "m" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["m"]["process"] == "engine"
    assert json.loads((tmp_path / "s.json").read_text())["process"] == "engine"
    assert server.keys == ["Bearer secret"]


def test_model_is_asked_for_by_name(server):
    paths = []

    def answer(path):
        paths.append(path)
        return 200, json.dumps({"a b": taken().to_json()}).encode()

    server.answer = answer
    assert list(fetch(server.url, "a b", None)) == ["a b"]
    assert paths == ["/debug/memory?model=a%20b"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (404, error("There is no route /debug/memory.", "route_not_found"), "no server of aie"),
        (404, b"not here", "no server of aie"),
        (404, error("No model 'x' is served here; there is m.", "model_not_found"), "there is m"),
        (409, error("The ledger is off; start the server with --memdebug.", "ledger_off"), "--memdebug"),
        (401, error("No API key came.", "invalid_api_key"), "AIE_API_KEY"),
        (500, b"", "no server of aie"),
        (200, b"<html>", "no server of aie"),
        (200, b"[]", "no server of aie"),
        (200, b"{}", "no server of aie"),
        (200, b'{"m": {"version": 99}}', "version 99"),
        (200, b'{"m": {"version": 1}}', "not a memory snapshot"),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(server, status, body, says):
    server.answer = lambda path: (status, body)
    with pytest.raises(InvalidInputError, match=says):
        fetch(server.url, None, None)


def test_nobody_there():
    with pytest.raises(EnvironmentLacksError, match="aie serve --memdebug"):
        fetch("http://127.0.0.1:1", None, None)


def test_traffic_over_http_mixes_answers_hang_ups_and_bad_requests(server, capsys, tmp_path):
    outputs = Outputs(json_path=tmp_path / "r.json")
    load = Load(20, 4, Mix(cancel=0.2, fail=0.25))
    assert look_or_run(server.url, None, None, load, outputs) is True
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["endings"] == {"answered": 11, "hung up": 4, "refused (400)": 5}
    assert Counter(server.posts) == {"good": 15, "bad": 5}
    assert "No leak" in capsys.readouterr().out


def test_what_a_request_still_holds_fails_the_run(server, capsys):
    looks = itertools.count()

    def answer(path):
        number = next(looks)
        return 200, json.dumps({"m": taken(number, *((KV,) if server.posts else ())).to_json()}).encode()

    server.answer = answer
    import aie.memdebug.remote_run as module

    module_settle, module._SETTLE_S = module._SETTLE_S, 0.0
    try:
        assert look_or_run(server.url, None, None, Load(4, 2, Mix(0, 0)), Outputs()) is False
    finally:
        module._SETTLE_S = module_settle
    out = capsys.readouterr().out
    assert "LEAKED" in out and "r-812" in out


def test_ledger_that_is_off_can_be_looked_at_but_names_no_leak(server, capsys):
    off = json.dumps({"m": replace(taken(), sample_every=0).to_json() | {"hint": "..."}}).encode()
    server.answer = lambda path: (200, off)
    assert look_or_run(server.url, None, None, None, Outputs()) is True
    assert "aie serve --memdebug" in capsys.readouterr().err
    with pytest.raises(InvalidInputError, match="aie serve --memdebug"):
        look_or_run(server.url, None, None, Load(4, 2, Mix()), Outputs())
    assert server.posts == []


def test_several_models(server):
    server.answer = lambda path: (200, json.dumps({"m": taken().to_json(), "n": taken().to_json()}).encode())
    with pytest.raises(InvalidInputError, match="serves m, n"):
        look_or_run(server.url, None, None, Load(4, 2, Mix()), Outputs())
    with pytest.raises(InvalidInputError, match="serves m, n; name the MODEL whose snapshot"):
        look_or_run(server.url, None, None, None, Outputs(snapshot=Path("never written")))


def test_server_that_is_gone_in_mid_traffic(server):
    looks = itertools.count()

    def answer(path):
        if next(looks) == 1:
            server.socket.close()
        return 200, json.dumps({"m": taken().to_json()}).encode()

    server.answer = answer
    with pytest.raises(EnvironmentLacksError, match=r"stopped answering|No server answers"):
        look_or_run(server.url, None, None, Load(4, 2, Mix(0, 0)), Outputs())


def test_a_mark_waits_until_requests_have_let_go():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    looks = iter([taken(1, KV), taken(1, used=[(0, "r-1")]), taken(1), taken(1, KV)])
    assert settled(lambda: next(looks), clock=lambda: now[0], sleep=sleep) == taken(1)
    assert len(slept) == 2
    assert settled(lambda: taken(1, KV), clock=lambda: now[0], sleep=sleep) == taken(1, KV)
    assert 4 < now[0] < 7


def test_http_plan_is_the_same_for_the_same_seed():
    first, again, other = (list(itertools.islice(http_plan(Mix(seed=s), "m"), 60)) for s in (1, 1, 2))
    assert first == again != other
    assert {request.ending for request in first} == {"answered", "hung up", "refused"}


def test_watch_says_what_changed(capsys):
    looks = iter([{"m": taken(0)}, {"m": taken(5, KV)}, {"m": taken(9)}])
    slept = []
    watch_server(lambda: next(looks), every_s=2.0, count=3, sleep=slept.append)
    first, second, third = capsys.readouterr().out.splitlines()
    assert "(" not in first
    assert "5 requests" in second and "live 4.0 KiB (+4.0 KiB)" in second
    assert "live 0 B (-4.0 KiB)" in third
    assert slept == [2.0, 2.0]


def test_watch_line_without_a_look_before():
    assert line("m", None, taken(3, KV)).startswith("m: 3 requests · live 4.0 KiB · reserved 4.0 KiB")
