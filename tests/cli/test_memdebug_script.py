"""`aie memdebug -- script.py`: the program runs as Python would run it, and what it holds at its end is named."""

import io
import json
import sys
from pathlib import Path

import pytest

from aie.memdebug.outputs import Outputs
from aie.memdebug.script import run_script
from aie_engine import InvalidInputError

CLEAN = """
import sys
from aie_tensor import MemoryPool
def main():
    pool = MemoryPool()
    with pool.allocate(5000, owner="scratch"):
        assert __name__ == "__main__" and sys.argv[1:] == ["--epochs", "3"]
    print("done", sys.argv[0].endswith("clean.py"))
if __name__ == "__main__":
    main()
"""
LEAKY = """
from aie_tensor import MemoryPool
POOL = MemoryPool()
SEEN = {}
def remember(key):
    SEEN[key] = POOL.allocate(3000, owner="hidden layer")
for key in "abc":
    remember(key)
"""
FAILING = """
from aie_tensor import MemoryPool
POOL = MemoryPool()
def work():
    buffer = POOL.allocate(3000, owner="buffer")
    raise ValueError("on purpose")
work()
"""
CYCLE = """
from aie_tensor import MemoryPool
import gc
gc.disable()
POOL = MemoryPool()
class Call:
    pass
call = Call()
call.me, call.buffer = call, POOL.allocate(3000, owner="buffer")
del call
"""


THREAD = """
import threading
from aie_tensor import MemoryPool
POOL = MemoryPool()
main_ended = threading.Event()
def work():
    with POOL.allocate(3000, owner="buffer"):
        main_ended.wait(10)
threading.Thread(target=work).start()
threading.Timer(0, main_ended.set).start()
"""


@pytest.fixture
def run(tmp_path, capsys):
    """`aie memdebug --json … -- NAME ARGUMENTS`: (exit code, standard output, standard error, report)."""

    def call(name, text, *arguments):
        (tmp_path / name).write_text(text)
        report = tmp_path / "report.json"
        before = sys.argv[:], sys.path[:], sys.modules["__main__"]
        code = run_script(tmp_path / name, arguments, Outputs(json_path=report))
        assert before == (sys.argv, sys.path, sys.modules["__main__"])
        return code, *capsys.readouterr(), json.loads(report.read_text())

    return call


def test_clean_program(run):
    code, out, err, report = run("clean.py", CLEAN, "--epochs", "3")
    assert (code, report["leaks"], err) == (0, [], "")
    assert "done True" in out and "No leak" in out


def test_what_globals_hold_is_named_with_line_owner_and_holder(run):
    code, out, _, report = run("leaky.py", LEAKY)
    (leak,) = report["leaks"]
    assert code == 1
    assert (leak["what"], leak["count"], leak["bytes"]) == ("hidden layer", 3, 9000)
    assert "leaky.py:6 in remember" in leak["stack"][0]
    assert "leaky.py:6" in out and "STILL HELD" in out
    assert leak["stack"][-1].endswith("leaky.py:8 in <module>")
    assert len(report["held_by"]) == 3
    assert all("SEEN" in line for line in report["held_by"]), report["held_by"]


def test_own_error_is_shown_as_python_would_and_its_locals_are_not_a_leak(run):
    code, out, err, report = run("failing.py", FAILING)
    assert (code, report["leaks"], report["exit_code"]) == (1, [], 1)
    assert err.startswith("Traceback (most recent call last):\n")
    assert "ValueError: on purpose" in err and "script.py" not in err.replace("failing.py", "")
    assert "No leak" in out and "dropped without a release" in out


def test_garbage_in_a_cycle_is_collected_before_the_report(run):
    assert run("cycle.py", CYCLE)[0] == 0


def test_threads_of_the_program_finish_first(run):
    assert run("thread.py", THREAD)[0] == 0


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('bad')", 1),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_exit_code_is_the_programs(run, ending, code):
    got, _, err, _ = run("exits.py", f"import sys\n{ending}\n")
    assert got == code
    assert "Traceback" not in err
    assert ("bad" in err) == ("bad" in ending)


def test_leak_never_hides_the_programs_own_exit_code(run):
    assert run("both.py", LEAKY + "import sys\nsys.exit(9)\n")[0] == 9


def test_program_without_a_pool_or_that_is_none(run, tmp_path):
    code, out, *_ = run("plain.py", "print('hi')")
    assert (code, "no memory pool" in out) == (0, True)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        run_script(tmp_path / "missing.py", [], Outputs())
    for text in ("def (:\n", "\0"):
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(InvalidInputError, match="not a Python program"):
            run_script(tmp_path / "bad.py", [], Outputs())


def test_exports(tmp_path, capsys):
    (tmp_path / "leaky.py").write_text(LEAKY)
    names = ("snapshot", "flamegraph", "memory_viz", "perfetto", "record")
    outputs = Outputs(**{name: tmp_path / name for name in names})
    outputs.check()
    assert run_script(tmp_path / "leaky.py", [], outputs) == 1
    assert all((tmp_path / name).stat().st_size > 0 for name in names)
    assert "remember" in (tmp_path / "flamegraph").read_text()
    assert json.loads((tmp_path / "perfetto").read_text())


def test_a_program_may_go_to_another_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "goes.py").write_text("import os\nos.chdir('elsewhere')\n" + LEAKY)
    names = ("json_path", "snapshot", "flamegraph", "memory_viz", "perfetto", "record")
    assert run_script(Path("goes.py"), [], Outputs(**{name: Path(name) for name in names})) == 1
    assert all((tmp_path / name).is_file() for name in names)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_program_may_put_its_own_streams_in_place(run):
    code, out, _, _ = run("quiet.py", "import io, sys\nsys.stdout = sys.stderr = io.StringIO()\n" + LEAKY)
    assert (code, "STILL HELD" in out) == (1, True)


def test_a_program_may_close_its_output(run, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    _, _, err, report = run("closed.py", LEAKY + "import sys\nsys.stdout.close()\n")
    assert "STILL HELD" in err and len(report["leaks"]) == 1


def test_a_sampling_ledger_of_the_program_sees_all(run):
    text = """
from aie_tensor import Ledger, MemoryPool
ledger = Ledger(enabled=True, sample_every=64)
pool = MemoryPool(ledger=ledger)
kept = [pool.allocate(1000, owner="kept") for _ in range(100)]
ledger.count_request(50)
"""
    _, _, _, report = run("samples.py", text)
    (leak,) = report["leaks"]
    assert (leak["count"], leak["bytes"], leak["bytes_per_1000_requests"]) == (100, 100_000, 2_000_000)


def test_a_cycle_that_holds_nothing_is_not_named(run):
    text = """
from aie_tensor import MemoryPool
class Owner:
    pass
owner = Owner()
owner.me = owner
owner.hidden = MemoryPool().allocate(1000, owner="hidden")
owner.hidden.release()
"""
    code, out, _, report = run("round.py", text)
    assert (code, report["in_cycles"]) == (0, [])
    assert "cycle" not in out
