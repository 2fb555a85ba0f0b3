"""How much memory a model will take, before it is loaded, and how much there is: arithmetic on headers and counters."""

from dataclasses import dataclass
from pathlib import Path

import psutil

from aie_engine.config import EngineConfig
from aie_engine.sizing import choose_sizes
from aie_loader import ModelConfig, Precision, find_precision

__all__ = ["MemoryNeed", "available_memory_bytes", "memory_need"]

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes. Activations and Python's own objects are small beside these two and are not counted."""

    weights: int  # as large as the file, unless another precision is asked for: weights are packed, not widened
    kv_cache: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache


def memory_need(config: EngineConfig, model: ModelConfig, file_bytes: int) -> MemoryNeed:
    """What an engine of `config` takes. Raises `InvalidInputError` for sizes that do not go together."""
    sizes = choose_sizes(config, model)
    weights = file_bytes if config.precision is None else _converted_bytes(find_precision(config.precision), model)
    return MemoryNeed(weights, sizes.num_blocks * sizes.block_bytes)


def _converted_bytes(precision: Precision, model: ModelConfig) -> int:
    """Matrices alone, from the sizes that the model states; the table and the head are two, even where they are one in
    the file: the one is read by row, the other as packed."""
    attention = 2 * model.hidden_size * model.head_dim * (model.num_heads + model.num_kv_heads)
    feed_forward = (3 if model.is_gated else 2) * model.hidden_size * model.intermediate_size
    layers, ends = model.num_layers * (attention + feed_forward), 2 * model.vocab_size * model.hidden_size
    return int(_bytes_per_weight(precision) * layers + _bytes_per_weight(precision.of_ends) * ends)


def _bytes_per_weight(precision: Precision) -> float:
    return precision.dtype.block_bytes / precision.dtype.block_size


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
