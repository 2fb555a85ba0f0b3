"""The command line as a person meets it: exit codes, one sentence instead of a traceback, output that pipes well."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from aie.console import check_writable, pull_progress, write_json
from aie_engine import EnvironmentLacksError, run_program

MODULE = [sys.executable, "-m", "aie"]


@pytest.fixture
def run(tmp_path):
    """`aie ARGUMENTS` with an empty cache folder and no network: (exit code, standard output, standard error)."""

    def call(*arguments, timeout_s=120, **environ):
        environment = {**os.environ, "AIE_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
        environment["PIP_CONFIG_FILE"] = os.devnull
        done = subprocess.run(
            [*MODULE, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL, env={**environment, **environ},
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.parametrize("arguments", [["--help"], ["config"], ["version"], ["quantize", "--help"]])
def test_a_locale_without_utf_8_costs_some_characters_and_no_more(run, arguments):
    code, out, _ = run(*arguments, PYTHONIOENCODING="ascii")
    assert code == 0 and out


def test_help_names_every_command_in_whole_words(run):
    code, out, _ = run("--help", COLUMNS="80")
    assert code == 0
    assert "..." not in out.partition("Commands:")[2]
    assert run("--version")[1] == run("version")[1] != ""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nonsense"], 2, "nonsense"),
        (["pull", "nope"], 2, "no model 'nope'"),
        (["load", "nope"], 2, "no model 'nope'"),
        (["generate", "x", "--max-tokens", "0"], 2, "max_tokens"),
        (["generate", ""], 2, "empty"),
        (["chat", "nope"], 2, "no model"),
        (["stage", "7"], 2, "6"),
        (["doctor", "--port", "-1"], 2, "65535"),
        (["memdebug", "--requests", "0"], 2, "at least 1"),
        (["serve"], 3, "pip could not download"),
        (["bench", "--url", "http://127.0.0.1:9"], 3, "No server answers"),
        (["bench", "--json", "/dev/null/x"], 3, "cannot be written"),
        (["profile", "--trace", "/dev/null/x"], 3, "Choose another --trace PATH"),
        (["profile", "--trace", "x.json", "--json", "./x.json"], 2, "give each its own"),
        (["bench", "--concurrency", "0"], 2, "--concurrency"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_the_right_code(run, arguments, code, says):
    got, _, err = run(*arguments)
    assert (got, says in err) == (code, True), err


@pytest.mark.parametrize("command", ["pull", "generate"])
def test_cache_in_a_place_that_cannot_be(run, command):
    code, _, err = run(command, *(["hi"] if command == "generate" else []), AIE_CACHE="/dev/null/cache")
    assert code == 3
    assert "AIE_CACHE" in err


def test_doctor_sees_that_the_model_cannot_be_fetched(run):
    assert run("doctor")[0] == 0
    code, out, _ = run("doctor", AIE_CACHE="/dev/null/cache")
    assert code == 3
    assert "BAD  cache" in out


def test_models_are_listed_with_whole_paths_however_narrow_the_terminal(run, tmp_path):
    code, out, _ = run("models", COLUMNS="40")
    assert code == 0
    assert "get it with: aie pull smollm2-135m" in out
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("arguments", [["models"], ["stage", "3"], ["config"]])
def test_reader_that_leaves_early_is_no_error(arguments):
    process = subprocess.Popen([*MODULE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(60), err) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="needs /dev/stdout")
def test_figures_go_to_standard_output_whatever_it_is(run, tmp_path):
    code, out, _ = run("config", "--json", "/dev/stdout")
    with open(tmp_path / "out", "w") as sink:
        subprocess.run([*MODULE, "config", "--json", "/dev/stdout"], stdout=sink, check=True)
    for text in (out, (tmp_path / "out").read_text()):
        assert code == 0 and "setting" in text and '"seed": {' in text, "a table, and the figures behind it"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_no_success():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MODULE, "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt_while_loading_is_no_traceback(tmp_path):
    # A module that the command line loads, and which takes the interrupt as Ctrl-C would deliver it.
    (tmp_path / "msgspec.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [*MODULE, "version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_json_goes_into_a_pipe_and_never_replaces_a_device(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_json(pipe, {"a": 1})
    reader.join(30)
    assert json.loads(read[0]) == {"a": 1}
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_json_keeps_links_and_leaves_nothing_beside(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "x.json")
    write_json(tmp_path / "link.json", [1])
    assert (tmp_path / "link.json").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["x.json"]
    old = os.umask(0o022)
    os.umask(old)
    assert stat.S_IMODE((tmp_path / "real" / "x.json").stat().st_mode) == 0o666 & ~old
    with pytest.raises(EnvironmentLacksError, match="cannot be written"):
        write_json(tmp_path / "real", [1])
    with pytest.raises(EnvironmentLacksError, match="cannot be written"):
        check_writable(tmp_path / "real")
    check_writable(tmp_path / "new" / "y.json")
    assert list((tmp_path / "new").iterdir()) == []


class _Slow(BaseHTTPRequestHandler):
    """An OpenAI-compatible server whose third answer makes the parent interrupt the load test, and never ends."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b'{"data": [{"id": "m"}]}' if self.path == "/v1/models" else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.count += 1
        if self.server.count > 2 + 3:  # the warm-up has two
            self.server.reached.set()
            self.server.release.wait(60)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        usage = b'"usage":{"prompt_tokens":3,"completion_tokens":1}'
        self.wfile.write(b'data: {"choices":[{"text":"a"}],' + usage + b"}\n\ndata: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_load_test_shows_what_it_has(how, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    server.count, server.reached, server.release = 0, threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    process = subprocess.Popen(
        [*MODULE, "bench", "--url", url, "--concurrency", "1", "--requests", "9", "--json", str(tmp_path / "b.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.reached.wait(60)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    finally:
        server.release.set()
        process.kill()
        process.wait()
        server.shutdown()
        server.server_close()
    assert process.returncode == 130
    assert "Traceback" not in err
    report = json.loads((tmp_path / "b.json").read_text())
    assert report["complete"] is False
    assert [(level["requests"], level["answered"], level["failed"]) for level in report["levels"]] == [(3, 3, 0)]


@pytest.mark.parametrize("width", [80, 60])
def test_no_figure_of_the_load_test_is_cut_short(width, capsys, monkeypatch):
    from aie.bench.report import Latency, Row
    from aie.bench.streaming_levels import print_tables

    monkeypatch.setenv("COLUMNS", str(width))
    slow = Latency(5000, 15000.0, 17719.0, 29332.0, 30332.0, 31000.0, 33000.0)
    quick = Latency(5000, 255.2, 255.2, 326.9, 426.9, 430.0, 500.0)
    ends = {"answered": 1012, "rejected": 7, "timed out": 3, "cut": 1, "cancelled": 0, "failed": 1}
    row = Row(256, None, 1024, 1012, 12, ends, 72.3, 11.77, None, 1116.8, 1120.5, 1, 1, 1.0, slow, slow, quick, quick,
              slow, slow, slow, Latency(0), 0.3, 1254e6, 26.1, {})  # fmt: skip
    print_tables([row])
    lines = capsys.readouterr().out.splitlines()
    shown = [" ".join(line.split()) for line in lines]
    assert "256 11.77 1116.8 1120.5 1012/1024 7 3 1 1 1254 26.1" in shown
    assert "256 17719 29332 30332 255.2 326.9 426.9 255.2 426.9 17719 29332 30332" in shown
    assert max(map(len, lines)) <= 80


def test_progress_where_nobody_watches_is_a_line_per_phase_and_one_every_ten_seconds(capsys):
    from aie_loader import PullProgress

    now = [0.0]
    report = pull_progress("m", clock=lambda: now[0])
    for second in range(26):
        now[0] = float(second)
        report(PullProgress("download", second << 20, 100 << 20))
    report(PullProgress("done", 100 << 20, 100 << 20))
    assert capsys.readouterr().err.splitlines() == [
        "m: download (100.0 MiB)",
        "m: download 10.0 MiB of 100.0 MiB (10 %)",
        "m: download 20.0 MiB of 100.0 MiB (20 %)",
        "m: done (100.0 MiB)",
    ]


@pytest.mark.parametrize("package", ["aie_loader", "aie_scheduler"])
def test_demonstration_whose_reader_leaves_is_no_error(package, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", package], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "AIE_CACHE": str(tmp_path)},
    )  # fmt: skip
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(60), err) == (0, b"")


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [(KeyboardInterrupt(), 130, ""), (EnvironmentLacksError("no disk"), 3, "no disk\n"), (None, 7, "")],
)
def test_how_a_program_ends(raised, code, says, capsys):
    def main():
        if raised is not None:
            raise raised
        return 7

    with pytest.raises(SystemExit) as caught:
        run_program(main)
    assert (caught.value.code, capsys.readouterr().err) == (code, says)


def test_interrupt_on_a_terminal_leaves_the_prompt_a_line_of_its_own(tmp_path):
    import pty

    (tmp_path / "msgspec.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*MODULE, "version"], stderr=theirs, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    os.close(theirs)
    assert (done.returncode, os.read(ours, 100)) == (130, b"\r\n")
    os.close(ours)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_error_and_its_number_nobody_elses(tmp_path, closed):
    command = f'"{sys.executable}" -m aie config --json "$1" {closed}'
    done = subprocess.run(["sh", "-c", command, "sh", str(tmp_path / "c.json")], capture_output=True, check=False)
    assert done.returncode == 0 and done.stderr == b""
    assert json.loads((tmp_path / "c.json").read_text())
