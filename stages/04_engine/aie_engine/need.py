"""How much memory a model will take, before it is loaded, and how much there is: arithmetic on headers and counters."""

from dataclasses import dataclass
from pathlib import Path

import psutil

from aie_engine.config import EngineConfig
from aie_engine.sizing import choose_sizes
from aie_loader import ModelConfig

__all__ = ["MemoryNeed", "available_memory_bytes", "memory_need"]

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes. Activations and Python's own objects are small beside these two and are not counted."""

    weights: int  # as large as the file: weights are packed, not widened
    kv_cache: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache


def memory_need(config: EngineConfig, model: ModelConfig, file_bytes: int) -> MemoryNeed:
    """What an engine of `config` takes. Raises `InvalidInputError` for sizes that do not go together."""
    sizes = choose_sizes(config, model)
    return MemoryNeed(file_bytes, sizes.num_blocks * sizes.block_bytes)


def available_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """What could be had without anything being pushed out: the machine's, or what the container may still take."""
    available = int(psutil.virtual_memory().available)
    try:  # cgroup v2
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return available
        used = int((cgroup / "memory.current").read_text())
        lines = (cgroup / "memory.stat").read_text().splitlines()
        cached = sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
        return max(0, min(available, int(limit) - used + cached))
    except (OSError, ValueError, IndexError):
        return available
