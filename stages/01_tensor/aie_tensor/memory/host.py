"""Host memory as a pool's upstream.

Regions of at least `MAP_BYTES` come from an anonymous mapping: zeroed, page-aligned, and made of physical pages only as
they are first touched, so that a KV cache of a gigabyte costs nothing until tokens fill it. Smaller ones come from
NumPy's allocator, shifted to a cache line.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import psutil
from numpy.typing import NDArray

from aie_tensor.memory.classes import ALIGNMENT, rounded_up
from aie_tensor.memory.upstream import Region

__all__ = [
    "HostUpstream",
    "bytes_at",
    "find_others",
    "gather_on_large_pages",
    "page_rounded",
    "reserve",
    "reserve_zeroed",
]

MAP_BYTES = 1 << 20
_LARGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25  # Python has no name for it
_LARGE_PAGES_FROM_BYTES = 8 << 20  # from here on, rounding up to pages of 2 MiB costs little


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
    if nbytes >= _LARGE_PAGES_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        # What is read all over in every step is looked up page by page: fewer and larger pages cost fewer look-ups. A
        # kernel without them refuses, and nothing is lost.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint8)


def gather_on_large_pages(regions: Iterable[tuple[int, int]]) -> None:
    """Move memory in use, (address, bytes) each, onto large pages as far as neighbouring regions fill them.

    For what is filled once and then read all over, such as weights, each too small for a large page of its own. The
    content stays, at its addresses. Needs Linux 6.1; where the system cannot or will not, nothing changes.
    """
    if sys.platform != "linux":
        return
    joined: list[list[int]] = []  # [begin, end]
    for address, nbytes in sorted(regions):
        begin, end = address - address % mmap.PAGESIZE, rounded_up(address + nbytes, mmap.PAGESIZE)
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([begin, end])
    madvise = ctypes.CDLL(None).madvise
    for begin, end in joined:
        first, last = rounded_up(begin, _LARGE_PAGE), end - end % _LARGE_PAGE
        if first < last:
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Memory that somebody else keeps alive, as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def find_others(address: int, nbytes: int, byte: int) -> tuple[int, int] | None:
    """`Upstream.find_others` for memory that the CPU reaches."""
    others = (bytes_at(address, nbytes) != byte).nonzero()[0]
    return (others.size, int(others[0])) if others.size else None


def page_rounded(nbytes: int) -> int:
    """The next multiple of the page size, at least one page."""
    return rounded_up(nbytes, mmap.PAGESIZE)


class HostUpstream:
    """The memory of this machine. A region is freed when the last array on it goes, so `give_back` only lets go."""

    device = "cpu"
    granularity = mmap.PAGESIZE

    def reserve(self, nbytes: int, *, zeroed: bool) -> Region:
        """Fresh bytes; MemoryError where the system has none."""
        try:
            memory = reserve_zeroed(nbytes) if zeroed else reserve(nbytes)
        except (OSError, OverflowError, ValueError) as error:  # each is how mmap or NumPy refuses some absurd size
            raise MemoryError(f"the system refused {nbytes:,} bytes: {error}") from None
        return Region(memory.ctypes.data, nbytes, memory, memory)

    def give_back(self, region: Region) -> None:
        """Nothing to do: arrays keep their memory alive, and the caller drops the region."""

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set every byte."""
        ctypes.memset(address, byte, nbytes)

    def find_others(self, address: int, nbytes: int, byte: int) -> tuple[int, int] | None:
        """(how many bytes are not `byte`, offset of the first of them); None when all are."""
        return find_others(address, nbytes, byte)

    def capacity_bytes(self) -> int:
        """Physical memory of the machine."""
        return psutil.virtual_memory().total

    def process_bytes(self) -> int | None:
        """The resident set of this process."""
        return psutil.Process().memory_info().rss
