"""Limits and settings of this machine that slow a server down or stop it: read once, and judged by themselves."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from aie.console import format_bytes
from aie.doctor.finding import Finding
from aie_engine import available_cores

__all__ = ["Machine", "judge_machine", "read_machine"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "AIE_THREADS")
_FEW_FILES = 1100  # `aie serve` takes 1024 connections, each of them a file
_COSTLY_CLOCK_S = 1e-6
_GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@dataclass(frozen=True, slots=True)
class Machine:
    """As this process finds it, or a server that runs here. None: this system does not say."""

    cores: int  # that may be kept busy
    allowed: int  # processors by affinity, hyper-threads among them
    quota: float | None = None  # cores that a container is granted
    open_files: int | None = None
    thread_variables: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None  # that a server was told to compute with
    huge_pages: str | None = None  # always, madvise or never
    swap_used: int = 0
    clock: str | None = None
    clock_read_s: float = 0.0
    whose: str = ""  # "" or "of the server": whose limits and variables these are


def read_machine(pid: int | None = None) -> Machine:
    """Of process `pid`, where it can be looked into, or of this one."""
    environ, files, whose = dict(os.environ), _open_files(None), ""
    threads = None
    if pid is not None:
        try:
            process = psutil.Process(pid)
            environ, files, whose = process.environ(), _open_files(process), " of the server"
            threads = _flag(process.cmdline(), "--threads", "-t")
        except (psutil.Error, OSError):
            environ, files = {}, None
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        cores=available_cores(),
        allowed=allowed,
        quota=_quota(),
        open_files=files,
        thread_variables={name: environ[name] for name in THREAD_VARIABLES if environ.get(name)},
        threads=threads,
        huge_pages=_chosen(_HUGE_PAGES),
        swap_used=_swap_used(),
        clock=_text(_CLOCK),
        clock_read_s=_clock_cost(),
        whose=whose,
    )


def judge_machine(machine: Machine) -> list[Finding]:
    """What needs no traffic to be seen. Nothing here is bad by itself: it becomes so under load."""
    return [
        _judge_files(machine),
        _judge_quota(machine),
        *_judge_threads(machine),
        *_judge_pages(machine),
        _judge_swap(machine),
        *_judge_clock(machine),
    ]


def _judge_files(machine: Machine) -> Finding:
    what = f"open files{machine.whose}"
    if machine.open_files is None:
        return Finding(what, "ok", "no limit is known")
    text = f"at most {machine.open_files}; every connection is one"
    figures = {"limit": machine.open_files}
    if machine.open_files >= _FEW_FILES:
        return Finding(what, "ok", text, figures=figures)
    change = f"`ulimit -n {4 * 1024}` before the server starts, or LimitNOFILE= in its systemd unit"
    return Finding(what, "note", f"{text}, and `aie serve` takes up to 1024 of them", change, figures)


def _judge_quota(machine: Machine) -> Finding:
    if machine.quota is None or machine.quota >= machine.allowed:
        return Finding("cpu quota", "ok", f"none below the {machine.allowed} processors of this process")
    return Finding(
        "cpu quota",
        "note",
        f"{machine.quota:g} cores by cgroup, of {machine.allowed} processors: what runs beyond it stands still until "
        "the next period",
        f"grant more (docker --cpus, resources.limits.cpu), or compute with fewer threads: --threads {machine.cores}",
        {"quota": machine.quota, "processors": machine.allowed},
    )


def _judge_threads(machine: Machine) -> list[Finding]:
    findings = []
    for name, value in machine.thread_variables.items():
        first = value.split(",")[0].strip()
        count = int(first) if first.isdigit() else 0
        if count > machine.cores:
            findings.append(
                Finding(
                    f"threads{machine.whose}",
                    "note",
                    f"{name}={value} on {machine.cores} cores: threads that wait for each other take turns",
                    f"unset {name}, or set it to {machine.cores} or less",
                    {"variable": name, "threads": count, "cores": machine.cores},
                )
            )
    if machine.threads is not None and machine.threads > machine.cores:
        findings.append(
            Finding(
                f"threads{machine.whose}",
                "bad",
                f"it computes with {machine.threads} threads on {machine.cores} cores: they wait for each other by "
                "spinning, and take turns",
                f"--threads {machine.cores}, or leave it out",
                {"threads": machine.threads, "cores": machine.cores},
            )
        )
    if not findings:
        findings.append(
            Finding(f"threads{machine.whose}", "ok", f"not more than the {machine.cores} cores are asked for")
        )
    return findings


def _judge_pages(machine: Machine) -> list[Finding]:
    if machine.huge_pages is None:
        return []
    if machine.huge_pages != "never":
        return [Finding("huge pages", "ok", f"transparent huge pages: {machine.huge_pages}")]
    return [
        Finding(
            "huge pages",
            "note",
            "transparent huge pages: never; weights and KV cache are walked in pages of 4 KiB",
            f"echo madvise > {_HUGE_PAGES} (as root); `aie` asks for them where it is allowed to",
        )
    ]


def _judge_swap(machine: Machine) -> Finding:
    if machine.swap_used < 1 << 20:
        return Finding("swap", "ok", "not in use")
    return Finding(
        "swap",
        "note",
        f"{format_bytes(machine.swap_used)} in use: what of a model lies there is read from disk at its next use",
        "stop what else needs memory, or give the server less: --kv-memory",
        {"used": machine.swap_used},
    )


def _judge_clock(machine: Machine) -> list[Finding]:
    text = f"{machine.clock or 'of the system'}, {machine.clock_read_s * 1e9:.0f} ns for a look"
    figures = {"source": machine.clock, "read_s": machine.clock_read_s}
    if machine.clock_read_s < _COSTLY_CLOCK_S:
        return [Finding("clock", "ok", text, figures=figures)]
    better = (
        "" if machine.clock in _GOOD_CLOCKS else "; the kernel's other clocks are in available_clocksource beside it"
    )
    return [
        Finding(
            "clock",
            "note",
            f"{text}: every measured time costs that much, and schedulers look at it all the time",
            f"see {_CLOCK}{better}",
            figures,
        )
    ]


def _flag(words: Sequence[str], *names: str) -> int | None:
    """The number behind `--threads`, as two words or as one with `=`."""
    for word, value in zip(words, [*words[1:], ""], strict=True):
        for name in names:
            found = word.removeprefix(f"{name}=") if word.startswith(f"{name}=") else value if word == name else ""
            if found.isdecimal():
                return int(found)
    return None


def _open_files(process: "psutil.Process | None") -> int | None:
    """The soft limit."""
    try:
        import resource

        if process is None:
            soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        else:
            soft = int(process.rlimit(resource.RLIMIT_NOFILE)[0])
    except (ImportError, AttributeError, OSError, psutil.Error):
        return None
    return None if soft in (-1, resource.RLIM_INFINITY) else soft


def _quota() -> float | None:
    """Of this process's container, of either version of cgroups."""
    new, old = (_text(path) for path in _QUOTAS)
    try:
        if new is not None:
            granted, period = new.split()[:2]
            return None if granted == "max" else int(granted) / int(period)
        if old is not None and int(old) > 0:
            return int(old) / int(_text(_QUOTAS[1].with_name("cpu.cfs_period_us")) or 0)
    except (ValueError, ZeroDivisionError):
        pass
    return None


def _chosen(path: Path) -> str | None:
    """Of a list in which the choice stands in brackets."""
    text = _text(path) or ""
    return text.partition("[")[2].partition("]")[0] or None


def _swap_used() -> int:
    try:
        return int(psutil.swap_memory().used)
    except (OSError, RuntimeError, psutil.Error):
        return 0


def _clock_cost() -> float:
    """Seconds for one look, the best of a few tries."""
    best = 1.0
    for _ in range(3):
        start_s = time.perf_counter()
        for _ in range(100):
            time.perf_counter()
        best = min(best, (time.perf_counter() - start_s) / 101)
    return best


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
