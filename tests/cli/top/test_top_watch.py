"""`aie top` again and again: on a terminal, in a pipe, as JSON, once; and the command."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from aie.app import app
from aie.top.look import Look
from aie.top.summary import document
from aie.top.watch import JsonLines, Lines, Screen, watch
from aie_engine import EnvironmentLacksError, InvalidInputError

# Watching


class Looks:
    """A server as a list: a look, or the sentence with which it fails."""

    def __init__(self, *answers: Look | str) -> None:
        self.answers = list(answers)
        self.slept: list[float] = []

    def __call__(self) -> Look:
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise EnvironmentLacksError(answer)
        return answer

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.answers:
            raise KeyboardInterrupt


def run(looks: Looks, output: Any, **options: Any) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        looks.sleep(seconds)

    watch(looks, output, interval_s=2.0, sleep=sleep, clock=lambda: now[0], **options)


def test_it_goes_on_when_the_server_comes_back(top: Any) -> None:
    lines: list[str] = []
    looks = Looks(top.first(1.0), "It is gone.", "It is gone.", top.second(7.0))
    with pytest.raises(KeyboardInterrupt):
        run(looks, Lines(lines.append, lambda: "12:00"))
    assert [line for line in lines if "gone" in line] == ["12:00 It is gone. Trying again."], "told once"
    assert len(lines) == 5 and lines[1].startswith("12:00 tiny: batch 3 running, 2 waiting")
    assert any("66.7/s generated" in line for line in lines[-2:]), "over the six seconds that it was away"
    assert looks.slept == [2.0] * 4


def test_what_went_wrong_is_a_line_too(top: Any) -> None:
    lines: list[str] = []
    lost = {"event": "worker", "model": "tiny", "worker": "engine", "state": "lost"}
    look = replace(top.first(1.0), events=[{"event": "started", "request_id": "r", "model": "tiny"}, lost])
    with pytest.raises(KeyboardInterrupt):
        run(Looks(look, top.second(3.0)), Lines(lines.append, lambda: "12:00"))
    assert [line.strip() for line in lines if not line.startswith("12:00")] == ["worker    tiny engine: lost"]


def test_the_first_look_must_succeed(top: Any) -> None:
    with pytest.raises(EnvironmentLacksError, match="not there"):
        run(Looks("not there"), Lines(print))
    with pytest.raises(EnvironmentLacksError, match="went away"):
        run(Looks(top.look_of(top.LLAMA, 1.0), "went away"), Lines(print), once=True)


def test_once_is_two_looks_and_json_is_an_object_per_look(top: Any) -> None:
    lines: list[str] = []
    first, second = top.first(1.0), top.second(3.0, top.LISTING)
    run(Looks(first, second), JsonLines(lines.append, "http://here"), once=True)
    (found,) = [json.loads(line) for line in lines]
    assert found["models"]["tiny"]["generated_per_s"] == 200.0 and found["models"]["tiny"]["running"] == 3
    assert found["models"]["tiny"]["ttft_ms"]["count"] == 200 and found["open"][0]["request_id"] == "waits"
    assert found == document(top.history_of(first, second), "http://here")
    with pytest.raises(KeyboardInterrupt):
        run(Looks(first, "gone."), JsonLines(lines.append, "http://here"))
    assert json.loads(lines[-1]) == {"url": "http://here", "trouble": "gone. Trying again."}


def test_on_a_terminal_the_last_picture_stays(top: Any) -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=30, markup=False, highlight=False, emoji=False)
    looks = Looks(top.first(1.0), "It is gone.")
    with pytest.raises(KeyboardInterrupt), Screen(console, "http://here", wall_clock=lambda: "12:00") as screen:
        run(looks, screen)
    assert "\x1b[?1049h" in out.getvalue() and "\x1b[?1049l" in out.getvalue(), "the other screen, and back"
    assert "It is gone. Trying again." in out.getvalue().rpartition("\x1b[?1049l")[2]


# The command


@pytest.mark.parametrize(
    "arguments", [["http://[::1"], ["ftp://x"], ["--interval", "-1"], ["--interval", "nan"], ["--interval", "0"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["top", *arguments])
    assert isinstance(result.exception, InvalidInputError), result.output


def test_the_command_once_on_a_real_server(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aie_engine import EngineConfig, LocalEngine, load_text_model
    from aie_server import ServedModel, Server

    monkeypatch.delenv("AIE_API_KEY", raising=False)
    engine = LocalEngine(EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=4))
    try:
        with Server([ServedModel("tiny", engine, load_text_model(tiny_gguf))], port=0, api_keys=["k"]) as server:
            _ask(server.address, "mine")
            invoke: Callable[..., Any] = CliRunner().invoke
            shown = invoke(app, ["top", server.url, "--once", "--interval", "0", "--api-key", "k"])
            assert shown.exit_code == 0 and "0 running, 0 waiting" in shown.output and "mine" in shown.output
            closed = invoke(app, ["top", server.url, "--once", "--interval", "0"])
            assert closed.exit_code == 0 and "asks for a key" in closed.output
            full = invoke(app, ["top", server.url, "--request", "mine", "--api-key", "k"])
            assert full.exit_code == 0 and "3 generated in 2 steps" in full.output, full.output
            found = json.loads(invoke(app, ["top", server.url, "--request", "mine", "--json", "--api-key", "k"]).output)
            assert found["choices"][0]["engine"]["generated_tokens"] == 3
            plain = invoke(app, ["top", server.url, "--once", "--json", "--interval", "0", "--api-key", "k"]).output
            assert json.loads(plain)["recent"][0]["request_id"] == "mine"
    finally:
        engine.close()


def _ask(address: tuple[str, int], request_id: str) -> None:
    body = json.dumps({"prompt": "One", "max_tokens": 3, "ignore_eos": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nX-Request-Id: {request_id}\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(head.encode() + body)
        while client.recv(65536):
            pass
