"""What a server lets be seen beside its answers: metrics, the reason why its queue waits, and, where it runs on this
machine, its processes."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from aie.bench.client import Endpoint
from aie.doctor.asking import get
from aie.doctor.measured import Neighbours
from aie.top.figures import Figures, Model, Rates, figures_of, rates
from aie.top.prometheus import Scrape, parse
from aie_engine import available_cores

__all__ = ["Look", "Process", "Watch", "Window", "find_process", "look_at_metrics"]

_LOOK_EVERY_S = 0.2
_LOCAL = ("127.0.0.1", "localhost", "::1")
_NOT_THE_SERVER = ("docker-proxy", "sshd", "ssh", "kubectl")  # they only pass on what comes to the port
_THROTTLING = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))


@dataclass(frozen=True, slots=True)
class Look:
    """At its metrics, at one moment."""

    at_s: float
    server: str
    model: Model
    front_memory: float | None
    collector: Mapping[str, float] = field(default_factory=dict)  # of Python's garbage: pause_s, runs, frozen
    held: str | None = None  # why the first in its queue waits
    workers: float | None = None  # of a model that answers at once

    @property
    def memory(self) -> float | None:
        """Of all its processes, as it tells."""
        engine = self.model.gauges.get("engine_memory", 0.0)
        return engine + self.front_memory if self.front_memory else engine or None


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen from the first look to the last. None or empty: the server does not tell."""

    looks: tuple[Look, ...]
    neighbours: Neighbours

    @property
    def rates(self) -> Rates | None:
        if len(self.looks) < 2:
            return None
        first, last = self.looks[0], self.looks[-1]
        return rates(first.model, last.model, max(1e-9, last.at_s - first.at_s))

    def gauge(self, name: str) -> list[float]:
        """As seen between the first look and the last, which are from before and after."""
        inside = self.looks[1:-1] or self.looks[1:]
        return [look.model.gauges[name] for look in inside if name in look.model.gauges]

    def held(self) -> Counter[str]:
        return Counter(look.held for look in self.looks if look.held is not None)

    def collector(self, name: str) -> float | None:
        """By how much it grew."""
        if len(self.looks) < 2 or name not in self.looks[-1].collector:
            return None
        return max(0.0, self.looks[-1].collector[name] - self.looks[0].collector.get(name, 0.0))


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


async def look_at_metrics(endpoint: Endpoint, model: str, *, ask_why: bool = False) -> Look | None:
    """None where there are none. ask_why: also why its queue waits, which only ours knows."""
    text = await get(endpoint, "/metrics")
    if text is None:
        return None
    try:
        scrape = parse(text)
        figures = figures_of(scrape)
    except ValueError:
        return None
    if figures is None or (found := _model_of(figures, model)) is None:
        return None
    at_s = time.perf_counter()
    held = await _why_held(endpoint, model) if ask_why and figures.server == "aie" else None
    workers = [scrape.total(one, model_name=model) for one in scrape.samples if one.endswith("prediction_workers")]
    return Look(
        at_s, figures.server, found, figures.front_memory, _collector(scrape), held, workers[0] if workers else None
    )


class Watch:
    """Looks at metrics and processes while something is measured."""

    def __init__(self, endpoint: Endpoint, model: str, process: Process | None, *, has_metrics: bool) -> None:
        self._endpoint, self._model, self._process = endpoint, model, process
        self._has_metrics = has_metrics
        self._looks: list[Look] = []
        self._task: asyncio.Task[None] | None = None
        self._before = _Cpu.now(process)
        self.window = Window((), Neighbours(available_cores()))

    async def __aenter__(self) -> "Watch":
        await self._look()
        self._before = _Cpu.now(self._process)
        self._task = asyncio.create_task(self._again_and_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
        neighbours = self._before.until(_Cpu.now(self._process))
        await self._look()
        self.window = Window(tuple(self._looks), neighbours)

    async def _again_and_again(self) -> None:
        while self._has_metrics:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self._look(ask_why=True)

    async def _look(self, *, ask_why: bool = False) -> None:
        if self._has_metrics:
            look = await look_at_metrics(self._endpoint, self._model, ask_why=ask_why)
            if look is not None:
                self._looks.append(look)


@dataclass(frozen=True, slots=True)
class _Cpu:
    """Readings of clocks that only go forward, in seconds."""

    at_s: float
    machine: float
    stolen: float | None
    server: float | None
    client: float
    throttled: float | None
    swapped: int | None

    @classmethod
    def now(cls, process: Process | None) -> "_Cpu":
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
        whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        server = None if process is None else process.cpu_s()
        return cls(
            time.perf_counter(), whole - idle, getattr(times, "steal", None), server, time.process_time(), _throttled(),
            _swapped_in(),
        )  # fmt: skip

    def until(self, end: "_Cpu") -> Neighbours:
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


def _model_of(figures: Figures, name: str) -> Model | None:
    """Many servers name a model otherwise in their metrics than in their API: one that stands alone is meant."""
    if name in figures.models:
        return figures.models[name]
    return next(iter(figures.models.values())) if len(figures.models) == 1 else None


async def _why_held(endpoint: Endpoint, model: str) -> str | None:
    text = await get(endpoint, "/debug/requests?limit=1")
    try:
        reason = json.loads(text or "{}")["queues"][model]["reason"]
        return str(reason)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _collector(scrape: Scrape) -> dict[str, float]:
    """Under Python's own names, or with the server's prefix before them."""
    wanted = {
        "pause_s": "python_gc_pause_seconds_total", "runs": "python_gc_collections_total",
        "frozen": "python_gc_frozen_objects",
    }  # fmt: skip
    found = {}
    for key, name in wanted.items():
        values = [scrape.total(one) for one in scrape.samples if one.endswith(name)]
        if known := [value for value in values if value is not None]:
            found[key] = sum(known)
    return found


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
