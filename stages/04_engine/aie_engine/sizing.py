"""How much of everything an engine takes, decided before anything is allocated: arithmetic on the configuration."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from aie_engine.config import EngineConfig
from aie_engine.kv_cache import kv_bytes_per_token
from aie_loader import ModelConfig
from aie_tensor import InvalidInputError

__all__ = ["Sizes", "available_cores", "choose_rows", "choose_sizes"]

_SPARE_ROWS = 64
_LOGITS_BYTES = 64 << 20
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What `choose_sizes` decided."""

    max_seq_len: int  # tokens of prompt and answer together
    num_blocks: int  # KV blocks
    block_bytes: int  # keys and values of one block, over all layers


def choose_sizes(config: EngineConfig, model: ModelConfig) -> Sizes:
    """KV blocks for the whole batch at full length, or what `kv_memory_bytes` holds, whichever is less; and a longest
    sequence that fits them even alone.

    Raises `InvalidInputError` where the configuration asks for a longer one than the model or the memory allows.
    """
    block_bytes = kv_bytes_per_token(model, config.kv_dtype) * config.block_size
    affordable = config.kv_memory_bytes // block_bytes
    room = affordable * config.block_size
    if room < 2:
        raise InvalidInputError(
            f"kv_memory_bytes must be at least {block_bytes} for one block of {config.block_size} tokens, not "
            f"{config.kv_memory_bytes}.",
            param="kv_memory_bytes",
        )
    wanted = config.max_seq_len
    if wanted is not None and wanted > model.max_position_embeddings:
        raise InvalidInputError(
            f"max_seq_len must be at most {model.max_position_embeddings}, the longest context that the model was "
            f"trained for, not {wanted}.",
            param="max_seq_len",
        )
    if wanted is not None and wanted > room:
        raise InvalidInputError(
            f"max_seq_len {wanted} does not fit the KV cache, which holds {room} tokens in {config.kv_memory_bytes} "
            "bytes. Give it more memory or ask for less.",
            param="max_seq_len",
        )
    max_seq_len = wanted if wanted is not None else min(model.max_position_embeddings, room)
    needed = config.max_batch_size * -(-max_seq_len // config.block_size)
    return Sizes(max_seq_len, min(affordable, needed), block_bytes)


def choose_rows(config: EngineConfig, vocab_size: int) -> int:
    """Rows of logits that a step computes at most: one for each running request, and some for guesses and for prompts
    whose tokens are scored, as many as 64 MiB hold but no fewer than 64. Who wants more computes a step twice. Pages
    that no step ever writes to take no memory."""
    least = config.max_batch_size + _SPARE_ROWS
    return min(config.max_batch_tokens, max(least, _LOGITS_BYTES // (4 * vocab_size)))


def available_cores() -> int:
    """Cores that this process may keep busy: its affinity, without hyper-threads, within a container's quota.

    Kernel threads wait for each other by spinning, so one too many costs far more than it brings.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(allowed, physical, _container_quota(_CGROUP_QUOTA) or allowed))


def _container_quota(file: Path) -> int | None:
    """Whole cores granted by cgroup v2, whose file says "quota period" in µs or "max period"."""
    try:
        quota, period = file.read_text().split()[:2]
        return None if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None
