"""What a pool tries before it says "out of memory", in this order, cheapest first.

The last step is to refuse one request. It is never to end the process: the others hold valid memory.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["LADDER", "Rung", "Step"]


class Rung(NamedTuple):
    """A step that was tried and did not help, with what was there after it."""

    name: str
    reserved_bytes: int
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """After `relieve(pool, block_bytes)` the pool looks again: free lists, then the upstream, then where `larger` says
    so, a block of a larger class."""

    name: str
    relieve: Callable[["MemoryPool", int], object]
    larger: bool


def _nothing(pool: "MemoryPool", block_bytes: int) -> None:
    pass


def _trim_enough(pool: "MemoryPool", block_bytes: int) -> None:
    """Under a budget return what is missing, the rest of the cache may be of use; else all."""
    with pool.lock:
        keep = 0
        if pool.budget_bytes is not None:
            missing = pool.store.reserved_bytes + block_bytes - pool.budget_bytes
            keep = max(0, pool.cached_bytes - missing) if missing > 0 else 0
    pool.trim(keep)


def _wait_for_streams(pool: "MemoryPool", block_bytes: int) -> None:
    pool.synchronize()
    _trim_enough(pool, block_bytes)


def _collect_garbage(pool: "MemoryPool", block_bytes: int) -> None:
    gc.collect()
    pool.synchronize()
    pool.trim()


LADDER = (
    Step("ask the upstream", _nothing, larger=False),
    Step("return cached segments", _trim_enough, larger=False),
    Step("take a larger or another stream's block", _nothing, larger=True),
    Step("wait for streams", _wait_for_streams, larger=True),
    Step("collect garbage and return every cached segment", _collect_garbage, larger=True),
)
