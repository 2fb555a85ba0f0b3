"""Where the pool's memory comes from, and in what sizes it is cut.

Blocks of at least `MAP_BYTES` come from an anonymous mapping: zeroed, page-aligned, and made of physical pages only as
they are first touched, so that a KV cache of a gigabyte costs nothing until tokens fill it. Smaller blocks come from
NumPy's allocator, shifted to a cache line.

Size classes are powers of two, or with `classes_per_doubling` k, k evenly spaced steps between them (as jemalloc does).
Rounding waste for sizes drawn log-uniformly is about 28 %, 15 %, 8 %, 4 % for k = 1, 2, 4, 8: fewer classes mean more
reuse and more waste.
"""

import mmap
import sys
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from aie_tensor.errors import InvalidInputError

__all__ = ["ALIGNMENT", "SizeClasses", "page_rounded", "reserve", "reserve_zeroed"]

ALIGNMENT = 64  # bytes: a cache line, and one AVX-512 register
MAP_BYTES = 1 << 20


def reserve(nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` fresh bytes at a 64-byte boundary; freed when the last array on them goes. MemoryError or OSError."""
    if nbytes >= MAP_BYTES:
        return reserve_zeroed(nbytes)
    memory = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    shift = -memory.ctypes.data % ALIGNMENT
    return memory[shift : shift + nbytes]


def reserve_zeroed(nbytes: int) -> NDArray[np.uint8]:
    """As `reserve`, always an anonymous mapping, so zero and untouched. `nbytes` > 0."""
    if sys.platform == "win32":
        mapping = mmap.mmap(-1, nbytes)
    else:  # Python's default is a shared mapping, which would count as shared memory and survive a fork writable
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE)
    return np.frombuffer(mapping, dtype=np.uint8)


def page_rounded(nbytes: int) -> int:
    """The next multiple of the page size, at least one page."""
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


class SizeClasses:
    """The block sizes of a pool, ascending, from `min_block` to `max_block` (both powers of two)."""

    def __init__(self, min_block: int, max_block: int, classes_per_doubling: int) -> None:
        for name, value in (("min_block", min_block), ("max_block", max_block)):
            if value < ALIGNMENT or value & (value - 1):
                raise InvalidInputError(f"{name} must be a power of two, at least {ALIGNMENT}, not {value}", param=name)
        if max_block < min_block:
            raise InvalidInputError(f"max_block {max_block} is below min_block {min_block}", param="max_block")
        if classes_per_doubling not in (1, 2, 4, 8) or min_block % (ALIGNMENT * classes_per_doubling):
            raise InvalidInputError(
                f"classes_per_doubling must be 1, 2, 4 or 8 with min_block a multiple of {ALIGNMENT} times it, "
                f"not {classes_per_doubling} with {min_block}",
                param="classes_per_doubling",
            )
        self.sizes: list[int] = []
        base = min_block
        while base < max_block:
            self.sizes += [base + base * step // classes_per_doubling for step in range(classes_per_doubling)]
            base *= 2
        self.sizes.append(max_block)

    def index(self, nbytes: int) -> int | None:
        """The smallest class that holds `nbytes`; None when even the largest does not."""
        found = bisect_left(self.sizes, nbytes)
        return found if found < len(self.sizes) else None
