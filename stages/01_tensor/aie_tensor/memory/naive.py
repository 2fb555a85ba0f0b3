"""The first pool anyone would write: a dictionary from size to the buffers of that size that nobody uses now.

Read this before `pool.py`. It is right, short, and fast as long as sizes repeat exactly. It fails where real traffic
begins: a buffer of 1 000 000 bytes never serves a request for 999 999, so every new length adds buffers that the pool
then keeps for good, and memory runs out while most of it is idle. `benchmarks/pool.py` shows both in numbers. It also
has no reference counts, no threads and no idea who holds what: `give_back` twice and two callers share one buffer.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["NaivePool"]


class NaivePool:
    """Exact-size reuse. Not safe for threads; a buffer given back twice is handed out twice."""

    def __init__(self) -> None:
        self._idle: dict[int, list[NDArray[np.uint8]]] = {}
        self.reserved_bytes = 0  # everything ever taken from the system; nothing goes back
        self.num_reuses = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """A buffer of exactly `nbytes` bytes with unknown content."""
        idle = self._idle.get(nbytes)
        if idle:
            self.num_reuses += 1
            return idle.pop()
        self.reserved_bytes += nbytes
        return np.empty(nbytes, dtype=np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Keep `buffer` for the next request of the same size."""
        self._idle.setdefault(buffer.nbytes, []).append(buffer)
