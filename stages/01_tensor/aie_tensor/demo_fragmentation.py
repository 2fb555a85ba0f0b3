"""The stage's demonstration, part 3: memory that is free and of no use. Run by `__main__`."""

import random

from aie_tensor.memdebug.blockmap import cells
from aie_tensor.memory import Allocation, MemoryPool

__all__ = ["show_fragmentation"]

KIB = 1 << 10
SEGMENT, BLOCK = 64 * KIB, 4 * KIB  # 16 blocks in a segment
NUM_BLOCKS = 64
NUM_LEFT = 5


def show_fragmentation() -> None:
    """Print the block map of a pool as most of its blocks are given back, and what can be returned to the system."""
    print("3. Fragmentation, made visible\n")
    free = cells(["free"], 1)
    print(
        f"   {NUM_BLOCKS} blocks of 4 KiB, cut from segments of 64 KiB. █ in use, {free} free; a group is a segment.\n"
    )
    pool = MemoryPool(segment_bytes=SEGMENT)
    held = [pool.allocate(BLOCK, owner="request") for _ in range(NUM_BLOCKS)]
    _print_map(pool, "all in use")
    random.Random(0).shuffle(held)
    _release(held, NUM_LEFT)
    _print_map(pool, f"all but {NUM_LEFT} given back")
    _print_trim(pool)
    _release(held, NUM_LEFT - 3)
    _print_map(pool, "three more given back")
    _print_trim(pool)
    _release(held, 0)
    print(
        "\n   A segment goes back to the system only as a whole, so one block that lives on pins 16. That is\n"
        "   external fragmentation; rounding inside the blocks is internal. A pool of classes never moves or\n"
        "   merges blocks: it is spared the search for holes, and relies on the same sizes coming again.\n"
    )


def _release(held: list[Allocation], leave: int) -> None:
    while len(held) > leave:
        held.pop().release()


def _print_map(pool: MemoryPool, title: str) -> None:
    segments = sorted(pool.state().segments, key=lambda segment: segment.address)
    drawn = " ".join(cells([block.state for block in segment.blocks], len(segment.blocks)) for segment in segments)
    print(f"      {title + ':':<26}{drawn}")


def _print_trim(pool: MemoryPool) -> None:
    free_kib = pool.stats().cached_bytes // KIB
    returned_kib = pool.trim() // KIB
    print(f"      {'':<26}{free_kib} KiB free, and trim() returns {returned_kib} KiB of them to the system")
