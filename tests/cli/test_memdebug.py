"""`aie memdebug` as it is typed: which kind of work the words choose, and what contradicts what."""

import json

import pytest
import typer
from typer.testing import CliRunner

from aie.app import app
from aie_engine import AieError, EnvironmentLacksError, InvalidInputError


@pytest.fixture
def aie(capsys):
    """`aie ARGUMENTS` in this process: (exit code, standard output, standard error); our errors are raised."""

    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})
        if isinstance(result.exception, AieError):
            raise result.exception
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


def test_help_teaches_every_kind_of_work(aie):
    code, out, _ = aie("memdebug", "--help")
    assert code == 0
    examples = (
        "--url http",
        "-- train.py",
        "--drill cache",
        "watch",
        "diff A B",
        "replay LOG",
        "--fail-if-growth 1MiB",
    )
    assert [word for word in examples if word not in out] == []
    assert "Usage: aie memdebug [OPTIONS] [MODEL]" in out.replace("root", "aie")
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("name", ["watch", "diff", "replay"])
def test_subcommands_have_a_help_of_their_own(aie, name):
    code, out, _ = aie("memdebug", name, "--help")
    assert code == 0
    assert f"memdebug {name} [OPTIONS]" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "http://h", "--drill", "cache"], "--url and --drill are two kinds of work"),
        (["--drill", "cache", "--", "x.py"], "two kinds of work"),
        (["--url", "http://h", "--", "x.py"], "two kinds of work"),
        (["--"], "Nothing follows --"),
        (["m", "--", "x.py"], "MODEL does not go with a program after --"),
        (["--requests", "3", "--", "x.py"], "--requests does not go with a program"),
        (["--url", "http://h", "--kernels", "numpy"], "--kernels does not go with --url"),
        (["--url", "http://h", "--record", "x"], "--record does not go with --url"),
        (["--url", "http://h", "--cancel", "0.5"], "--cancel is about traffic; give --requests"),
        (["--drill", "cache", "--snapshot", "x"], "--snapshot does not go with --drill"),
        (["--api-key", "k"], "--api-key does not go with a model"),
        (["--requests", "0"], "--requests must be at least 1"),
        (["--concurrency", "0"], "--concurrency"),
        (["--cancel", "0.9", "--fail", "0.2"], "more than all requests"),
        (["--after", "24"], "--after is 24"),
        (["--fail-if-growth", "much"], "fail-if-growth is 'much'"),
        (["--url", "ftp://h"], "--url is 'ftp://h'"),
        (["watch", "--every", "0"], "--every"),
        (["watch", "--count", "0"], "--count"),
    ],
)
def test_what_contradicts_itself_is_one_sentence(aie, arguments, says):
    with pytest.raises(InvalidInputError) as caught:
        aie("memdebug", *arguments)
    assert says in str(caught.value)


def test_key_from_the_environment_contradicts_nothing(aie, monkeypatch, tmp_path):
    monkeypatch.setenv("AIE_API_KEY", "k")
    (tmp_path / "x.py").write_text("print('ran')")
    assert "ran" in aie("memdebug", "--", tmp_path / "x.py")[1]


def test_paths_are_looked_at_before_the_work(aie, tmp_path):
    for flag in ("--json", "--snapshot", "--record", "--flamegraph", "--memory-viz", "--perfetto"):
        with pytest.raises(EnvironmentLacksError, match=f"Choose another {flag} PATH"):
            aie("memdebug", "no-such-model", flag, "/dev/null/x")
    with pytest.raises(InvalidInputError, match="name the same file"):
        aie("memdebug", "no-such-model", "--json", tmp_path / "x", "--snapshot", tmp_path / "x")


def test_a_model_may_be_called_like_anything_but_a_subcommand(aie):
    with pytest.raises(InvalidInputError, match="no model 'nope'"):
        aie("memdebug", "nope")


def test_arguments_after_the_dashes_are_the_programs(aie, tmp_path):
    (tmp_path / "x.py").write_text("import sys\nprint(sys.argv[1:])")
    code, out, _ = aie(
        "memdebug", "--json", tmp_path / "r.json", "--", tmp_path / "x.py", "--requests", "5", "--", "-h"
    )
    assert code == 0
    assert "['--requests', '5', '--', '-h']" in out
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 0


def test_clean_run_counts_every_ending(aie, tiny_gguf, tmp_path):
    names = ("snapshot", "flamegraph", "memory-viz", "perfetto", "record")
    files = [word for name in names for word in (f"--{name}", str(tmp_path / name))]
    code, out, _ = aie("memdebug", tiny_gguf, "--kernels", "numpy", "--json", tmp_path / "m.json", *files)
    assert (code, "No leak" in out) == (0, True)
    report = json.loads((tmp_path / "m.json").read_text())
    assert sum(report["endings"].values()) == report["requests"] == 24
    assert report["leaks"] == []
    assert len(set(report["live_bytes"][1:])) == 1
    assert report["slab_blocks"] == [0, 0, 0, 0]
    assert all((tmp_path / name).stat().st_size > 0 for name in names)
    assert "weights" in (tmp_path / "flamegraph").read_text()


def test_blocks_that_a_cancelled_request_keeps_are_found(aie, tiny_gguf, monkeypatch):
    from aie_scheduler.blocks import BlockAllocator

    free, calls = BlockAllocator.free, []

    def leaky(self, *arguments, **options):
        calls.append(1)
        if len(calls) != 15:  # one request of the traffic never gives its blocks back
            return free(self, *arguments, **options)
        return None

    monkeypatch.setattr(BlockAllocator, "free", leaky)
    code, out, _ = aie("memdebug", tiny_gguf, "--kernels", "numpy")
    assert code == 1
    leaked = out.partition("LEAKED")[2]
    assert "continuous.py:" in leaked and "memdebug-0-" in leaked
    assert "0 in use now" not in leaked


def test_diff_and_replay_read_what_was_written(aie, tmp_path):
    (tmp_path / "x.py").write_text(
        "from aie_tensor import MemoryPool\nP = MemoryPool()\n"
        "import sys\nkept = [P.allocate(2000, owner='kept') for _ in range(int(sys.argv[1]))]\n"
    )
    for name, count in (("a", 1), ("b", 5)):
        flags = ["--snapshot", tmp_path / name, "--record", tmp_path / f"{name}.log"]
        assert aie("memdebug", *flags, "--", tmp_path / "x.py", count)[0] == 1
    code, out, _ = aie("memdebug", "diff", tmp_path / "a", tmp_path / "b", "--json", tmp_path / "d.json")
    assert code == 0
    assert "x.py:4" in out
    (change,) = json.loads((tmp_path / "d.json").read_text())["groups"]
    assert (change["what"], change["count"], change["bytes"]) == ("kept", 4, 8000)
    code, out, _ = aie("memdebug", "replay", tmp_path / "b.log", "--json", tmp_path / "p.json")
    assert code == 0
    assert len(json.loads((tmp_path / "p.json").read_text())["policies"]) >= 5


def test_log_that_is_cut_off(aie, tmp_path):
    (tmp_path / "x.py").write_text("from aie_tensor import MemoryPool\nMemoryPool().allocate(2000).release()\n")
    assert aie("memdebug", "--record", tmp_path / "log", "--", tmp_path / "x.py")[0] == 0
    (tmp_path / "log").write_bytes((tmp_path / "log").read_bytes()[:-3])
    with pytest.raises(InvalidInputError, match="--allow-cut"):
        aie("memdebug", "replay", tmp_path / "log")
    assert aie("memdebug", "replay", tmp_path / "log", "--allow-cut", "--budget", "1MiB")[0] == 0
    with pytest.raises(InvalidInputError, match="budget is 'much'"):
        aie("memdebug", "replay", tmp_path / "log", "--budget", "much")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"version": 99}', '{"log":"aie memory events","version":99}\n'])
def test_files_that_are_none(aie, tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(InvalidInputError, match="x"):
        aie("memdebug", "diff", tmp_path / "x", tmp_path / "x")
    with pytest.raises(InvalidInputError, match="x"):
        aie("memdebug", "replay", tmp_path / "x")


@pytest.mark.parametrize("name", ["exception", "cycle", "cache", "logger"])
def test_drill_names_the_planted_line(aie, name, tmp_path):
    from aie_tensor.memdebug.drills import DRILLS

    code, out, _ = aie("memdebug", "--drill", name, "--json", tmp_path / "d.json")
    file, line = DRILLS[name].planted
    assert code == 1
    assert f"{file}:{line}" in out and "Found" in out
    assert json.loads((tmp_path / "d.json").read_text())["found"] is True


def test_unknown_drill_lists_the_four(aie):
    with pytest.raises(InvalidInputError) as caught:
        aie("memdebug", "--drill", "nope")
    assert all(name in str(caught.value) for name in ("exception", "cycle", "cache", "logger"))


def test_it_is_one_command_of_the_application():
    assert "memdebug" in getattr(typer.main.get_command(app), "commands", {})
