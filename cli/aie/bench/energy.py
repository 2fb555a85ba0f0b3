"""Energy that this machine used while a level ran, where it tells: of CPU packages through the powercap folder of Linux
(RAPL, Intel and AMD alike), of NVIDIA GPUs through their management library, if its Python binding is installed.

Both are counters of the whole machine: the load generator and whatever else runs is in them, and nothing is subtracted.
RAPL counts microjoules and begins anew at a limit of its own, after minutes at full power, so it is looked at often
enough that it cannot do so twice between two looks. What is told belongs to the server only where it runs on this
machine.
"""

import importlib
import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["NOT_TOLD", "Energy", "EnergyMeter", "Gpus", "Rapl", "Source", "Spent", "is_this_machine", "meter_of"]

NOT_TOLD = "Energy: not told by this machine"
_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules by source over `seconds`."""

    joules: Mapping[str, float]
    seconds: float

    @property
    def total_j(self) -> float:
        return sum(self.joules.values())


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one level, and what comes to an answered request and to a token; None where there was none."""

    joules: Mapping[str, float]
    seconds: float
    watts: float
    j_per_request: float | None
    j_per_token: float | None

    @classmethod
    def of(cls, energy: Energy, requests: int, tokens: int) -> "Spent":
        total = energy.total_j
        return cls(
            dict(energy.joules), energy.seconds, total / energy.seconds, total / requests if requests else None,
            total / tokens if tokens else None,
        )  # fmt: skip

    def __str__(self) -> str:
        pairs = (("answered request", self.j_per_request), ("token", self.j_per_token))
        each = [f"{value:.3g} J per {name}" for name, value in pairs if value is not None]
        of = ", ".join(f"{source} {joules:.0f} J" for source, joules in self.joules.items())
        return ", ".join([f"{self.watts:.1f} W", *each]) + f" ({of}; all that ran on that machine, idle power included)"


class Source(Protocol):
    """A counter, or several that are added."""

    name: str

    def grown_j(self) -> float | None:
        """Joules since the last call, 0 at the first; None where it cannot be read."""


@dataclass(slots=True)
class _Zone:
    """One CPU package."""

    folder: Path
    range_uj: int  # it counts up to here, and begins anew
    last_uj: int | None = None

    def grown_uj(self) -> int:
        """Raises OSError or ValueError."""
        now = int((self.folder / "energy_uj").read_text())
        grown = 0 if self.last_uj is None else now - self.last_uj
        self.last_uj = now
        return grown if grown >= 0 else grown + self.range_uj


class Rapl:
    """The CPU packages of this machine. Their parts (core, dram) and the same counters by another way (mmio) are not
    counted a second time."""

    name = "CPU package"

    def __init__(self, folder: Path = _POWERCAP) -> None:
        self.trouble: str | None = None  # why nothing is told
        self._zones = _zones(folder)
        if not self._zones:
            self.trouble = f"no package under {folder}"

    def grown_j(self) -> float | None:
        try:
            grown = [zone.grown_uj() for zone in self._zones]
        except PermissionError as error:
            self.trouble = f"{error.filename} may not be read; `sudo chmod a+r` it"
            return None
        except (OSError, ValueError) as error:
            self.trouble = f"its counter cannot be read: {error}"
            return None
        return sum(grown) * 1e-6 if grown else None


def _zones(folder: Path) -> list[_Zone]:
    zones = []
    try:
        for zone in sorted(folder.glob("*-rapl:*")):
            if zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package"):
                zones.append(_Zone(zone, int((zone / "max_energy_range_uj").read_text())))
    except (OSError, ValueError):
        return []
    return zones


class Gpus:
    """All NVIDIA GPUs of this machine, added."""

    name = "GPU"

    def __init__(self, nvml: Any = None) -> None:
        self.trouble: str | None = None
        self._last_mj: int | None = None
        self._handles: Sequence[Any] = ()
        self._nvml = nvml
        try:
            self._nvml = importlib.import_module("pynvml") if nvml is None else nvml
        except ImportError:
            self.trouble = "no NVML (`pip install nvidia-ml-py`)"
            return
        try:
            self._nvml.nvmlInit()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        except self._nvml.NVMLError as error:
            self.trouble = f"NVML says: {error}"
        else:
            self.trouble = None if self._handles else "no NVIDIA GPU"

    def grown_j(self) -> float | None:
        if not self._handles:
            return None
        try:
            now_mj = sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles)
        except self._nvml.NVMLError as error:  # GPUs before Volta do not count
            self.trouble, self._handles = f"NVML says: {error}", ()
            return None
        last, self._last_mj = self._last_mj, now_mj
        return 0.0 if last is None else (now_mj - last) * 1e-3


@dataclass(slots=True)
class EnergyMeter:
    """Adds up what the sources tell, look by look. note: why there is nothing to look at."""

    sources: Sequence[Source] = ()
    note: str | None = None
    clock: Callable[[], float] = time.perf_counter
    _joules: dict[str, float] = field(default_factory=dict)
    _begun_s: float | None = None
    _seen_s: float = 0.0

    def begin(self) -> None:
        """The measured time begins: what was used before is in no figure."""
        for source in self.sources:
            source.grown_j()
        self._joules.clear()
        self._begun_s = self._seen_s = self.clock()

    def look(self) -> None:
        """Often; nothing happens before `begin`."""
        if self._begun_s is None:
            return
        for source in self.sources:
            if (grown := source.grown_j()) is not None:
                self._joules[source.name] = self._joules.get(source.name, 0.0) + grown
        self._seen_s = self.clock()

    @property
    def energy(self) -> Energy | None:
        """From `begin` to the last look."""
        if self._begun_s is None or not self._joules or self._seen_s <= self._begun_s:
            return None
        return Energy(dict(self._joules), self._seen_s - self._begun_s)


def meter_of(is_local: bool, *, folder: Path = _POWERCAP, nvml: Any = None) -> EnergyMeter:
    """is_local: whether the server runs on this machine."""
    if not is_local:
        return EnergyMeter(note=f"{NOT_TOLD}: the server runs on another one.")
    sources: list[Rapl | Gpus] = [Rapl(folder), Gpus(nvml)]
    for source in sources:
        source.grown_j()  # who may not read learns it here
    telling = [source for source in sources if source.trouble is None]
    if telling:
        return EnergyMeter(telling)
    return EnergyMeter(note=f"{NOT_TOLD} ({'; '.join(f'{source.name}: {source.trouble}' for source in sources)}).")


def is_this_machine(host: str) -> bool:
    """As far as an address tells: the loopback one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
