"""Ctrl-C at every moment, and terminals that lack characters."""

import io
import json
import signal
import sys

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench import command, measure
from aie.bench.dashboard import spark
from aie.bench.generator import Endpoint
from aie.bench.interrupts import interrupts_kept, report_first
from aie.bench.recorded import FORMAT
from aie.bench.target import Target
from aie.plain_characters import NAME, allow_plain_characters
from aie_scheduler.plot import bars, scatter


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["reach", "header"])
def test_before_the_first_request_it_leaves_a_report_of_nothing(tmp_path, monkeypatch, moment):
    if moment == "reach":
        monkeypatch.setattr(command, "_target", interrupt)
    else:
        target = Target(Endpoint("127.0.0.1", 9, "", False), "the model", None)
        monkeypatch.setattr(command, "_target", lambda *_: target)
        monkeypatch.setattr(measure, "header", interrupt)
    files = {name: tmp_path / f"out.{name}" for name in ("json", "rows", "markdown", "html")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run = CliRunner().invoke(app, ["bench", "--url", "http://127.0.0.1:9", *words])
    assert run.exit_code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    document = json.loads(files["json"].read_text())
    assert (document["format"], document["complete"], document["levels"]) == (FORMAT, False, [])
    assert "Interrupted before anything was sent" in files["html"].read_text()
    assert "Interrupted before anything was sent" in files["markdown"].read_text() and files["rows"].read_text() == ""
    again = CliRunner().invoke(app, ["bench", "compare", str(files["json"]), str(files["json"])])
    assert "No level is in both" in str(again.exception)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_report_that_is_being_made_is_given_up_at_the_second_press(number, capsys):
    with interrupts_kept():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        report_first()
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_who_ignores_interrupts_goes_on_ignoring_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_kept():
            report_first()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def stream(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")


def printed(monkeypatch, encoding, text):
    out = stream(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    allow_plain_characters()
    print(text, flush=True)
    return out.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_plots_are_drawn_in_every_encoding(monkeypatch, encoding):
    lines = [*scatter({"a": [(1, 2), (3, 40)]}, x_label="x", y_label="y"), *bars({"n": 3.0}), spark([0, 1, 2, 3]),
             "◀ knee · 3 × 5 – 8 ≤ 9 … ±2 µs →"]  # fmt: skip
    text = "\n".join(lines)
    shown = printed(monkeypatch, encoding, text)
    assert len(shown.splitlines()) == len(lines) and "?" not in shown
    assert (shown.rstrip("\n") == text) == (encoding == "utf-8")


def test_what_nobody_knows_is_a_question_mark(monkeypatch):
    assert printed(monkeypatch, "ascii", "▁█│ 漢 ◀") == "_#| ? <\n"
    assert "a–b".encode("ascii", NAME) == b"a-b"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", NAME)
