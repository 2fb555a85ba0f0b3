"""The log as JSON: one valid object for each line, whatever was to be said, and whoever said it."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie.log_format import JsonFormatter, TextFormatter, json_line, make_formatter
from aie.stderr_lines import StderrLines

HOSTILE = ['"', "\\", "\n", "\r\n", "\x00", "\x1b[2J", "\ud800", "é", "\u2028", "}", '{"a": 1}', "\udcff", "\x7f"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def read(line: str) -> dict[str, Any]:
    """As a strict reader would: one line, ASCII, no NaN, no half character, no name twice."""
    assert "\n" not in line and line.isascii()

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    found = json.loads(line, parse_constant=no_constant, object_pairs_hook=once)
    json.dumps(found, ensure_ascii=False).encode()  # raises for half a character
    assert isinstance(found, dict)
    return found


def record_of(message: str, *args: object, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    return logging.Logger("aie.access").makeRecord("aie.access", level, "f.py", 1, message, args, None, extra=extra)


def test_a_line() -> None:
    record = record_of("%s took %d ms", "r1", 7, level=logging.WARNING, fields={"status": 200, "request_id": "r1"})
    record.created = 1_790_000_000.25
    assert json.loads(JsonFormatter().format(record)) == {
        "timestamp": "2026-09-21T14:13:20.250000Z", "level": "warning", "logger": "aie.access",
        "message": "r1 took 7 ms", "status": 200, "request_id": "r1",
    }  # fmt: skip


def test_fields_may_be_made_when_they_are_written() -> None:
    assert read(JsonFormatter().format(record_of("m", fields=lambda: {"status": 7})))["status"] == 7


def test_an_exception_is_a_field_and_the_line_one_line() -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        record = record_of("it failed")
        record.exc_info = sys.exc_info()
    found = read(JsonFormatter().format(record))
    assert found["message"] == "it failed" and found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: bad\nthing")


@pytest.mark.parametrize("text", HOSTILE)
def test_what_clients_send_stays_inside_its_string(text: str) -> None:
    found = read(JsonFormatter().format(record_of("%s", text, fields={"path": text, text or "x": text})))
    shown = text.encode("utf-8", "backslashreplace").decode()
    assert found["message"] == found["path"] == found[shown] == shown


@given(st.text(st.characters()), st.dictionaries(st.text() | st.sampled_from(["timestamp", "level"]), anything))
def test_any_fields_make_one_valid_object(message: str, fields: dict[str, Any]) -> None:
    names = {name.encode("utf-8", "backslashreplace").decode() for name in fields}
    if not names & {"timestamp_", "level_", "logger_", "message_"}:
        found = read(json_line(0.0, "INFO", "aie", message, fields))
        assert found["timestamp"] == "1970-01-01T00:00:00.000000Z" and found["level"] == "info"


def test_a_field_cannot_take_the_place_of_ours() -> None:
    found = read(json_line(0.0, "INFO", "aie", "m", {"level": "fine", "message": "other"}))
    assert (found["level"], found["level_"], found["message"], found["message_"]) == ("info", "fine", "m", "other")


def test_what_json_has_no_form_for_is_text() -> None:
    found = read(json_line(0.0, "INFO", "a", "m", {"nan": float("nan"), "path": Path("/x"), "set": {1}, "inf": -1e999}))
    assert (found["nan"], found["path"], found["set"], found["inf"]) == ("nan", "/x", [1], "-inf")


def test_the_formats_by_name() -> None:
    assert isinstance(make_formatter("json"), JsonFormatter) and isinstance(make_formatter("text"), TextFormatter)
    line = make_formatter("text").format(record_of("hello", fields={"secret": 1}))
    assert line.endswith(" INFO aie.access: hello")


# Standard error, line by line


def test_lines_of_whoever_writes_there() -> None:
    reading, writing = os.pipe()  # in the place of standard error
    taken: list[str] = []
    lines = StderrLines(taken.append, descriptor=writing)
    os.write(writing, b"one\ntw")
    child = [sys.executable, "-c", "import os, sys; os.write(int(sys.argv[1]), b'o\\n \\n\\xff\\x1b\\n')", str(writing)]
    subprocess.run(child, check=True, pass_fds=[writing])
    os.write(writing, b"10 %\r90 %\nwithout an end")
    lines.write("past it\n")
    lines.close()
    lines.close()
    assert taken == ["one", "two", "\\xff\x1b", "90 %", "without an end"]
    os.write(writing, b"as before\n")
    assert os.read(reading, 100) == b"past it\nas before\n"
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_reader_that_is_done_before_it_is_woken_breaks_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    taken: list[str] = []
    lines = StderrLines(taken.append, descriptor=writing)
    os.write(writing, b"last\n")
    write = os.write

    def write_late(descriptor: int, data: bytes) -> int:
        write(descriptor, b"!\n")
        lines._thread.join(60)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_late)
    lines.close()
    assert taken == ["last", "!"]
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_line_without_an_end_is_cut() -> None:
    reading, writing = os.pipe()
    taken: list[str] = []
    lines = StderrLines(taken.append, descriptor=writing)
    for _ in range(3):
        os.write(writing, b"x" * 65536)
    lines.close()
    assert sum(map(len, taken)) == 3 * 65536 and max(map(len, taken)) <= 2 * 65536
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_where_there_is_no_standard_error_lines_go_nowhere() -> None:
    reading, writing = os.pipe()
    os.close(writing)  # a number that is nobody's
    taken: list[str] = []
    lines = StderrLines(taken.append, descriptor=writing)
    os.write(writing, b"a worker's\n")
    lines.write("the log's\n")
    lines.close()
    assert taken == ["a worker's"]
    assert os.read(reading, 10) == b""
    for descriptor in (reading, writing):
        os.close(descriptor)


# The command


def serve(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AIE_", "OTEL_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "aie", "serve", *arguments, "--log-format", "json"],
        stderr=subprocess.PIPE, text=True, env=kept | environ,
    )  # fmt: skip


def test_every_line_of_a_server_is_an_object(tiny_gguf: Path) -> None:
    process = serve(str(tiny_gguf), "--port", "0", "--kernels", "numpy", "--workers", "0")
    assert process.stderr is not None
    found = []
    for line in process.stderr:
        found.append(read(line.rstrip("\n")))
        if found[-1]["message"].startswith("Ready"):
            process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert all({"timestamp", "level", "logger", "message"} <= set(one) for one in found)
    assert found[-1]["message"] == "Stopped." and found[-1]["logger"] == "aie.serve"


def test_an_error_at_the_start_is_an_object_with_the_same_exit_code(tmp_path: Path) -> None:
    process = serve(str(tmp_path / "none.gguf"))
    _, lines = process.communicate(timeout=60)
    found = [read(line) for line in lines.splitlines()]
    assert process.returncode == 2 and found[-1]["level"] == "error" and "none.gguf" in found[-1]["message"]


def test_a_collector_that_is_none_is_refused_before_anything_loads(tiny_gguf: Path) -> None:
    process = serve(str(tiny_gguf), "--otel-endpoint", "nonsense")
    _, lines = process.communicate(timeout=60)
    assert process.returncode == 2 and "no address of a collector" in read(lines.splitlines()[-1])["message"]
