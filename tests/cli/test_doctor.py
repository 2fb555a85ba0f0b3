"""`aie doctor` without a server: the machine's limits, judged by made-up figures, and the command line."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.doctor.finding import Finding, as_json, show
from aie.doctor.machine import Machine, judge_machine, read_machine
from aie.doctor.measured import Neighbours
from aie.doctor.processes import Clocks, find_process
from aie_engine import AieError

FINE = Machine(cores=2, allowed=2, open_files=20000, huge_pages="madvise", clock="tsc", clock_read_s=5e-8)


@pytest.mark.parametrize(
    ("change", "what", "level", "says"),
    [
        ({"open_files": 256}, "open files", "note", "ulimit -n 4096"),
        ({"open_files": None}, "open files", "ok", "no limit"),
        ({"quota": 1.0}, "cpu quota", "note", "--threads 2"),
        ({"quota": 2.0}, "cpu quota", "ok", "none below"),
        ({"thread_variables": {"OMP_NUM_THREADS": "8"}}, "threads", "note", "unset OMP_NUM_THREADS"),
        ({"thread_variables": {"OMP_NUM_THREADS": "8,4"}}, "threads", "note", "set it to 2"),
        ({"thread_variables": {"OPENBLAS_NUM_THREADS": "1"}}, "threads", "ok", ""),
        ({"thread_variables": {"OPENBLAS_NUM_THREADS": "many"}}, "threads", "ok", ""),
        ({"threads": 8}, "threads", "bad", "8 threads on 2 cores"),
        ({"threads": 2}, "threads", "ok", ""),
        ({"huge_pages": "never"}, "huge pages", "note", "echo madvise"),
        ({"swap_used": 1 << 30}, "swap", "note", "1.0 GiB in use"),
        ({"clock": "hpet", "clock_read_s": 3e-6}, "clock", "note", "3000 ns"),
    ],
)
def test_the_machine_both_ways(change, what, level, says):
    assert {finding.level for finding in judge_machine(FINE)} == {"ok"}
    (found,) = [one for one in judge_machine(replace(FINE, **change)) if one.what == what]
    assert (found.level, says in found.text + found.change) == (level, True), found


def test_this_machine_can_be_read():
    here = read_machine()
    assert here.cores >= 1 and here.allowed >= here.cores and 0 < here.clock_read_s < 1
    of_server = read_machine(os.getpid())
    assert of_server.whose == " of the server" and of_server.open_files == here.open_files
    gone = read_machine(2**22 - 1)  # nobody has that number
    assert gone.open_files is None and not gone.thread_variables


def test_what_clocks_say_of_the_time_between_two_looks():
    before = Clocks(at_s=10.0, machine=100.0, stolen=1.0, server=20.0, client=3.0, throttled=0.5, swapped=7)
    after = Clocks(at_s=20.0, machine=115.0, stolen=2.0, server=28.0, client=4.0, throttled=1.5, swapped=9)
    seen = before.until(after)
    assert (seen.server, seen.client, seen.others) == (0.8, 0.1, pytest.approx(0.6))
    assert (seen.stolen, seen.throttled, seen.swapped_pages) == (0.1, 0.1, 2)
    unknown = replace(before, server=None, stolen=None).until(after)
    assert unknown.server is None and unknown.others is None and unknown.stolen is None
    assert isinstance(Clocks.now(None).until(Clocks.now(None)), Neighbours)


def test_a_server_elsewhere_has_no_processes_here():
    from aie.bench.client import Endpoint

    assert find_process(Endpoint("192.0.2.1", 80, "", False)) is None


def test_findings_on_paper_and_in_json(capsys):
    findings = [Finding("a", "ok", "fine"), Finding("b", "bad", "broken", "mend it", {"figure": 1})]
    show(findings)
    assert capsys.readouterr().out == "ok   a: fine\nBAD  b: broken\n     → mend it\n"
    assert as_json(findings) == [
        {"what": "a", "level": "ok", "text": "fine"},
        {"what": "b", "level": "bad", "text": "broken", "change": "mend it", "figures": {"figure": 1}},
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--live", "--url", "http://127.0.0.1:1"], "give one of them"),
        (["--quick"], "add --live to start one"),
        (["smollm2-135m"], "add --live to start one"),
        (["--serve-args", "--threads 1"], "add --live to start one"),
        (["--url", "http://127.0.0.1:1", "--serve-args", "--threads 1"], "a server that is started"),
        (["--live", "--serve-args", "'"], "--serve-args is"),
        (["--url", "nonsense://x"], "--url is"),
        (["--url", "http://127.0.0.1:1"], "No server answers"),
        (["--live", "no-such-model"], "no-such-model"),
        (["--json", "/dev/null/x"], "cannot be written"),
        (["--live", "--json", "/dev/null/x"], "cannot be written"),
    ],
)
def test_what_goes_wrong_is_one_sentence(arguments, says):
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert isinstance(result.exception, AieError) and says in str(result.exception), result.exception


def test_alone_it_looks_at_this_machine(tmp_path):
    path = tmp_path / "found.json"
    result = CliRunner().invoke(app, ["doctor", "--json", str(path)])
    assert result.exit_code in (0, 3) and "open files" in result.output and "python" in result.output
    found = json.loads(path.read_text())
    assert result.exit_code == (3 if any(one["level"] == "bad" for one in found) else 0)
    assert {"python", "machine", "cache", "kernels", "port 8000", "swap", "threads"} <= {one["what"] for one in found}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_are_read_where_they_run():
    from aie.doctor.processes import Process

    here = Process(os.getpid())
    assert here.rss_bytes() > 1 << 20 and here.cpu_s() > 0 and here.faults()[0] > 0
