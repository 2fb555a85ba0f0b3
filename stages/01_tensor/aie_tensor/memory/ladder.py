"""What a pool tries before it says "out of memory", in this order, cheapest first.

The last step is to refuse one request. It is never to end the process: the others hold valid memory.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aie_tensor.memory.oom import Tried, out_of_memory
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.streams import Stream

if TYPE_CHECKING:
    from aie_tensor.memory.allocation import Allocation
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["LADDER", "Step", "climb"]


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


def climb(
    pool: "MemoryPool",
    block_bytes: int,
    size_class: int | None,
    nbytes: int,
    owner: str | Owner,
    stream: Stream | None,
) -> "Allocation":
    """A block of `block_bytes` that no free list had. Called without the lock, and relieves without it: waiting for
    streams takes time, and collecting garbage runs foreign code that may wait for another thread. OutOfMemoryError.
    """
    store = pool.store
    tried: list[Tried] = []
    hopeless = pool.budget_bytes is not None and block_bytes > pool.budget_bytes  # then the cache stays as it is
    for step in () if hopeless else LADDER:
        step.relieve(pool, block_bytes)
        with pool.lock:
            pool.settle_all()
            block = store.take(size_class, stream) if tried and size_class is not None else None
            reused = block is not None
            if block is None:
                room = None if pool.budget_bytes is None else pool.budget_bytes - store.reserved_bytes
                block = store.reserve(size_class, block_bytes, room)
            if block is None and step.larger and size_class is not None:
                block = store.take_larger(size_class, stream)
                reused = block is not None
            if block is not None:
                if size_class is not None:
                    (pool.num_reuses if reused else pool.num_reserved)[size_class] += 1
                return pool.hand_out(block, nbytes, owner, stream)
            tried.append(Tried(step.name, store.reserved_bytes, pool.cached_bytes))
    raise out_of_memory(pool, nbytes, block_bytes, Owner.of(owner), tried)
