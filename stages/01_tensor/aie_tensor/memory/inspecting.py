"""A pool's state as plain data: every segment and block, every class, every slab."""

from collections import Counter
from typing import TYPE_CHECKING

from aie_tensor.memory.owner import Owner
from aie_tensor.memory.segments import Block, BlockUse, Segment
from aie_tensor.memory.state import BlockState, ClassState, PoolState, PoolStats, SegmentState

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["holders", "pool_state"]


MAX_LOOKS = 4


def pool_state(pool: "MemoryPool") -> PoolState:
    """All of it at one moment: under the pool's lock, and looked at again when a collection that this very look started
    ran finalizers that changed it."""
    with pool.lock:
        for _ in range(MAX_LOOKS):
            state = _look(pool, pool.stats())
            if pool.stats() == state.stats:
                break
        return state


def _look(pool: "MemoryPool", stats: PoolStats) -> PoolState:
    segments = sorted(pool.store.segments, key=lambda segment: segment.address)
    return PoolState(
        name=pool.name,
        device=pool.device,
        capacity_bytes=pool.upstream.capacity_bytes() if pool.budget_bytes is None else pool.budget_bytes,
        stats=stats,
        classes=_classes(pool, segments),
        segments=tuple(_segment(segment, pool.classes.sizes) for segment in segments),
        slabs=tuple(slab.state() for slab in list(pool.slabs)),
    )


def holders(pool: "MemoryPool") -> list[tuple[str, int, int]]:
    """(what for, number of blocks, their bytes) of all live blocks, most bytes first. Request ids are left out."""
    counts: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    with pool.lock:
        for segment in list(pool.store.segments):
            for block in segment.blocks:
                if block.use == "live":
                    what = Owner.of(block.owner).what or "unnamed"
                    counts[what] += 1
                    nbytes[what] += block.nbytes
    return [(what, counts[what], held) for what, held in nbytes.most_common()]


def _segment(segment: Segment, sizes: list[int]) -> SegmentState:
    return SegmentState(
        address=segment.address,
        nbytes=segment.nbytes,
        size_class=None if segment.size_class is None else sizes[segment.size_class],
        blocks=tuple(_block(block, segment.address) for block in segment.blocks),
    )


def _block(block: Block, start: int) -> BlockState:
    live = block.use == "live"
    return BlockState(
        offset=block.address - start,
        nbytes=block.nbytes,
        requested_bytes=block.requested_bytes if live else 0,
        state=block.use,
        owner=str(Owner.of(block.owner)) if live else "",
        stream=block.stream_name,
    )


def _classes(pool: "MemoryPool", segments: list[Segment]) -> tuple[ClassState, ...]:
    uses: Counter[tuple[int, BlockUse]] = Counter()
    for segment in segments:
        if segment.size_class is not None:
            uses.update((segment.size_class, block.use) for block in segment.blocks)
    return tuple(
        ClassState(
            nbytes=nbytes,
            num_live=uses[number, "live"],
            num_free=uses[number, "free"],
            num_pending=uses[number, "pending"],
            num_allocations=pool.num_reuses[number] + pool.num_reserved[number],
            num_reuses=pool.num_reuses[number],
        )
        for number, nbytes in enumerate(pool.classes.sizes)
        if pool.num_reuses[number] or pool.num_reserved[number]
    )
