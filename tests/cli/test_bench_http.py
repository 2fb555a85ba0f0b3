"""`aie bench --endpoint http`: any server, any request; what is sent, what counts as an answer, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.options import BenchOptions
from aie.bench.plain_http import PlainHttp
from aie_engine import EnvironmentLacksError, InvalidInputError


def bench(server: Any, *words: str) -> Any:
    url = ["--url", f"{server.endpoint.url}/base", "--endpoint", "http"]
    return CliRunner().invoke(app, ["bench", *url, "--concurrency", "2", "--requests", "6", *words])


def test_what_was_typed_is_sent_and_what_came_is_counted(threaded: Any, tmp_path: Path) -> None:
    def answer(asked: Any) -> tuple[int, bytes]:
        return (200, b"12345") if asked.path == "/base/x?y=1" else (404, b"no such page")

    server, out = threaded(answer), tmp_path / "out.json"
    words = [
        "--path",
        "/x?y=1",
        "--method",
        "PUT",
        "--body",
        '{"a": 1}',
        "--header",
        "X-A:b",
        "--header",
        "Accept: a/b",
    ]
    run = bench(server, *words, "--json", str(out), "--api-key", "secret")
    assert run.exit_code == 0, run.output
    puts = server.of("PUT")
    assert {asked.raw for asked in puts} == {b'{"a": 1}'} and len(puts) == 6 + 64  # and to warm up
    headers = puts[-1].headers
    assert (headers["x-a"], headers["accept"], headers["content-type"]) == ("b", "a/b", "application/json")
    assert headers["authorization"] == "Bearer secret"
    document = json.loads(out.read_text())
    [level] = document["levels"]
    assert document["model"] == "PUT /x?y=1" and document["test"]["request"] == "PUT /x?y=1"
    assert (level["answered"], level["ttft"]["count"], level["e2e"]["count"]) == (6, 0, 6)
    assert level["bytes_per_s"] * level["wall_s"] == pytest.approx(6 * 5)
    assert "Closed loop, PUT /x?y=1" in run.output and "6/6" in run.output


@pytest.mark.parametrize(("status", "body"), [(204, b""), (201, b"made"), (200, b"")])
def test_any_2xx_is_an_answer(threaded: Any, status: int, body: bytes) -> None:
    run = bench(threaded(lambda asked: (status, body)))
    assert run.exit_code == 0 and "6/6" in run.output


@pytest.mark.parametrize(
    ("status", "said"), [(404, "6 × HTTP 404: gone"), (301, "redirects are not followed"), (503, "6 × HTTP 503: gone")]
)
def test_nothing_else_is(threaded: Any, status: int, said: str) -> None:
    run = bench(threaded(lambda asked: (status, b"gone")))
    assert run.exit_code == 1 and "0/6" in run.output and said in run.output


def test_the_open_loop_with_a_promise(threaded: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    words = ["--rate", "400", "--arrivals", "constant", "--requests", "20", "--slo", "e2e_p99<10s", "--rows", str(rows)]
    server = threaded(lambda asked: (200, b"x"))
    run = CliRunner().invoke(app, ["bench", "--url", server.endpoint.url, "--endpoint", "http", *words])
    assert run.exit_code == 0 and "20/20" in run.output and "good: e2e_p99<10000ms" in run.output, run.output
    due = [json.loads(line)["due_s"] for line in rows.read_text().splitlines()]
    assert sorted(due) == pytest.approx([i / 400 for i in range(20)])


def test_bodies_and_their_types(tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff")
    call = PlainHttp(body=f"@{file}").call()
    assert (call.method, call.body, call.headers) == ("POST", b"\x00\xff", ("Content-Type: application/octet-stream",))
    assert PlainHttp(body="hello").call().headers == ("Content-Type: text/plain; charset=utf-8",)
    typed = PlainHttp(body="{}", headers=["content-type:  text/x"]).call()
    assert typed.headers == ("content-type: text/x",)
    get = PlainHttp(path="/p").call()
    assert (get.method, get.body, get.headers, get.answer) == ("GET", None, (), "whole")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"path": "x"}, "begin it with /"),
        ({"path": "/ü"}, "percent-encode"),
        ({"path": "/a b"}, "percent-encode"),
        ({"method": "get"}, "in capitals"),
        ({"method": "CONNECT"}, "tunnel"),
        ({"headers": ["Foo"]}, "Name: value"),
        ({"headers": ["A: b\r\nC: d"]}, "Name: value"),
        ({"headers": ["content-length: 3"]}, "set by the load test itself"),
    ],
)
def test_requests_that_are_none(typed: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        PlainHttp(**typed)


def test_a_body_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        PlainHttp(body=f"@{tmp_path / 'none'}").call()


HTTP = {"endpoint": "http", "url": "http://x"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpoint": "http"}, "needs the server"),
        (HTTP | {"model": "m"}, "--model is for models"),
        (HTTP | {"input_tokens": "3"}, "--input-tokens is for models"),
        (HTTP | {"shared_prefix": 3}, "--shared-prefix is for models"),
        (HTTP | {"cancel": "0.1@5tok"}, "0.1@0"),
        (HTTP | {"slo": "tpot<1s"}, "end-to-end"),
        (HTTP | {"api_key": "k", "headers": ("Authorization: x",)}, "give one"),
        ({"path": "/x"}, "--path is for plain HTTP"),
        ({"headers": ("a: b",)}, "--header is for plain HTTP"),
    ],
)
def test_options_that_do_not_go_with_it(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        BenchOptions(**options)


def test_metrics_elsewhere(threaded: Any, tmp_path: Path) -> None:
    pages = iter(range(1, 100))

    def metrics(asked: Any) -> tuple[int, bytes]:
        count = next(pages)
        return 200, (
            f'nv_inference_count{{model="m"}} {8 * count}\nnv_inference_exec_count{{model="m"}} {2 * count}\n'
            f'nv_gpu_memory_used_bytes{{gpu_uuid="a"}} 2e9\nnv_energy_consumption{{gpu_uuid="a"}} {count}\n'
        ).encode()

    server, other, out = threaded(lambda asked: (200, b"x")), threaded(metrics), tmp_path / "out.json"
    run = bench(server, "--metrics-url", f"{other.endpoint.url}/metrics", "--json", str(out))
    assert run.exit_code == 0, run.output
    [level] = json.loads(out.read_text())["levels"]
    assert (level["server"]["server"], level["mean_batch"]) == ("Triton", 4.0)
    assert "GPU 1.9 GiB used" in run.output and level["energy"]["joules"]["GPU (as the server tells)"] >= 1
    assert level["energy"]["j_per_request"] * 6 >= 1 and level["energy"]["j_per_token"] is None
    none = bench(server, "--metrics-url", "ftp://x")
    assert isinstance(none.exception, InvalidInputError) and "--metrics-url is 'ftp://x'" in str(none.exception)
    wrong = bench(server, "--metrics-url", "http://127.0.0.1:9")
    assert isinstance(wrong.exception, EnvironmentLacksError) and "Look at --metrics-url" in str(wrong.exception)
