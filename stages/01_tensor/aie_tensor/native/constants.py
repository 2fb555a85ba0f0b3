"""Where the numbers lie that a plan reads and never writes: packed weights, norms, biases, rotary tables."""

import numpy as np
import numpy.typing as npt

from aie_tensor.memory.allocation import Allocation
from aie_tensor.memory.host import gather_on_large_pages
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.native.packed import aligned_zeros
from aie_tensor.stacks import skip_frames_of

__all__ = ["Constants"]

skip_frames_of(__file__)  # the line that asks is where the weight is named

Bytes = npt.NDArray[np.uint8]
F32Array = npt.NDArray[np.float32]

# From here on rounding to pages costs at most a sixteenth; a smaller vector would waste most of a page of its own.
_EXACT_FROM_BYTES = 64 << 10


class Constants:
    """Takes memory from `pool`, with an owner, and returns all of it in `close`. Without a pool, plain NumPy arrays.

    The arrays may be read until `close`. One that is still referenced then keeps its block until it goes.
    """

    def __init__(self, pool: MemoryPool | None = None) -> None:
        self._pool = pool
        self._taken: list[Allocation] = []

    def allocate(self, nbytes: int, owner: str) -> Bytes:
        """Zeroed bytes at a cache line. OutOfMemoryError."""
        if self._pool is None:
            return aligned_zeros(nbytes)
        if nbytes >= _EXACT_FROM_BYTES:
            taken = self._pool.allocate_exact(nbytes, owner=owner)
        else:
            taken = self._pool.allocate(nbytes, owner=owner)
        self._taken.append(taken)
        data: Bytes = taken.array(np.uint8, nbytes)
        if nbytes < _EXACT_FROM_BYTES:
            data[:] = 0
        return data

    def store(self, values: F32Array, owner: str) -> F32Array:
        """A copy of `values`, C-contiguous. OutOfMemoryError."""
        copy: F32Array = self.allocate(values.size * 4, owner).view(np.float32).reshape(values.shape)
        copy[...] = values
        return copy

    def settle(self) -> None:
        """All is filled and will only be read: onto large pages with it, where the system has them."""
        gather_on_large_pages((taken.address, taken.nbytes) for taken in self._taken)

    def close(self) -> None:
        """Return everything; again is harmless."""
        taken, self._taken = self._taken, []
        for allocation in taken:
            allocation.release()
