"""Where a server runs on this machine: its processes, and who else uses the cores."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from aie.bench.client import Endpoint
from aie.doctor.measured import Neighbours
from aie_engine import available_cores

__all__ = ["Clocks", "Process", "find_process"]

_LOCAL = ("127.0.0.1", "localhost", "::1")
_NOT_THE_SERVER = ("docker-proxy", "sshd", "ssh", "kubectl")  # they only pass on what comes to the port
_THROTTLING = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))  # of this process's container


class Process:
    """The server's processes, where they run here. One that goes meanwhile spoils nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)

    def rss_bytes(self) -> int | None:
        return sum(one.memory_info().rss for one in self._all()) or None

    def cpu_s(self) -> float | None:
        """Used so far by all of them."""
        found = [one.cpu_times() for one in self._all()]
        return sum(times.user + times.system for times in found) if found else None

    def faults(self) -> tuple[int, int] | None:
        """Pages that were touched first, and those that came from disk."""
        minor = major = 0
        for one in self._all():
            try:  # after the name, which may hold anything: state, …, minor and major faults are the 8th and 10th
                fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
                minor, major = minor + int(fields[7]), major + int(fields[9])
            except (OSError, ValueError, IndexError):
                return None
        return minor, major

    def _all(self) -> Iterator[Any]:
        try:
            family = [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return
        for one in family:
            try:
                with one.oneshot():
                    one.memory_info()
                    yield one
            except psutil.Error:
                continue


def find_process(endpoint: Endpoint) -> Process | None:
    """Who listens there, if that is on this machine and may be seen."""
    if endpoint.host not in _LOCAL:
        return None
    try:
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == endpoint.port and one.pid:
                process = psutil.Process(one.pid)
                return None if process.name() in _NOT_THE_SERVER else Process(one.pid)
    except (psutil.Error, OSError):
        pass
    return None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Readings of clocks that only go forward, in seconds."""

    at_s: float
    machine: float
    stolen: float | None
    server: float | None
    client: float
    throttled: float | None
    swapped: int | None

    @classmethod
    def now(cls, process: Process | None) -> "Clocks":
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
        whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        server = None if process is None else process.cpu_s()
        return cls(
            time.perf_counter(), whole - idle, getattr(times, "steal", None), server, time.process_time(), _throttled(),
            _swapped_in(),
        )  # fmt: skip

    def until(self, end: "Clocks") -> Neighbours:
        """What happened in between, in cores on average."""
        wall_s = max(1e-3, end.at_s - self.at_s)
        client = (end.client - self.client) / wall_s
        server = None if self.server is None or end.server is None else max(0.0, end.server - self.server) / wall_s
        busy = (end.machine - self.machine) / wall_s
        load = psutil.getloadavg()[0] if hasattr(psutil, "getloadavg") else None
        swapped = None if self.swapped is None or end.swapped is None else end.swapped - self.swapped
        return Neighbours(
            cores=available_cores(),
            server=server,
            client=client,
            others=None if server is None else max(0.0, busy - server - client),
            stolen=None if self.stolen is None or end.stolen is None else (end.stolen - self.stolen) / wall_s,
            throttled=(
                None if self.throttled is None or end.throttled is None else (end.throttled - self.throttled) / wall_s
            ),
            load=load,
            swapped_pages=swapped,
        )


def _throttled() -> float | None:
    """Seconds for which this container stood still for its quota; of version 2 in µs, of version 1 in ns."""
    for path, name, unit in zip(_THROTTLING, ("throttled_usec", "throttled_time"), (1e-6, 1e-9), strict=True):
        try:
            for line in path.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value) * unit
        except (OSError, ValueError):
            continue
    return None


def _swapped_in() -> int | None:
    """Pages since the machine's start."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "pswpin":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
