"""Give back the physical memory of weights that were read once from a mapped file.

Packing reads every page of the file. The pages then count as resident, as many bytes again as the packed copy, although
nothing reads them any more. They are clean copies of a file, so the kernel may drop them at once; should somebody read
them again, they come back from the file.
"""

import mmap

import numpy as np

from aie_tensor import Matrix

__all__ = ["drop_pages"]


def drop_pages(matrix: Matrix) -> None:
    """Drop the whole pages under `matrix`, if it lies in a read-only mapped file; else do nothing."""
    mapping = _mapping(matrix.data)
    # On a writable or anonymous mapping, dropping would lose data.
    if mapping is None or not memoryview(mapping).readonly or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = np.frombuffer(mapping, dtype=np.uint8).ctypes.data
    begin = matrix.data.ctypes.data - base
    first_page = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE  # pages shared with a neighbour stay
    last_page = (begin + matrix.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last_page > first_page:
        mapping.madvise(mmap.MADV_DONTNEED, first_page, last_page - first_page)


def _mapping(array: object) -> mmap.mmap | None:
    """The mapped file that an array is a view of, through however many views."""
    while not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
        if array is None:
            return None
    return array
