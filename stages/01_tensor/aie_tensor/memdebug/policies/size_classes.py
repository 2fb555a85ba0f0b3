"""`MemoryPool` itself, on memory that does not exist: the replay drives the code that serves, not a model of it."""

from aie_tensor.memdebug.pieces import free_pieces
from aie_tensor.memdebug.policies.policy import CountedMemory, Usage
from aie_tensor.memory.allocation import Allocation
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.memory.upstream import Region

__all__ = ["PooledClasses"]


class _Upstream:
    """`CountedMemory` as the pool wants it."""

    device = "nowhere"
    granularity = 4096

    def __init__(self, memory: CountedMemory) -> None:
        self._memory = memory

    def reserve(self, nbytes: int, *, zeroed: bool) -> Region:
        return Region(self._memory.reserve(nbytes), nbytes, None, None)

    def give_back(self, region: Region) -> None:
        self._memory.give_back(region.nbytes)

    def find_others(self, address: int, nbytes: int, byte: int) -> tuple[int, int] | None:
        return None

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        raise AssertionError((address, nbytes, byte))

    def capacity_bytes(self) -> int:
        return self._memory.limit_bytes or 1 << 62

    def process_bytes(self) -> int | None:
        return None


class PooledClasses:
    """Size classes with a free list each; what is beyond the largest class has a block of its own."""

    timed = True

    def __init__(self, classes_per_doubling: int, limit_bytes: int | None = None) -> None:
        self.name = f"pool, {classes_per_doubling} per doubling"
        self.memory = CountedMemory(limit_bytes)
        self._pool = MemoryPool(
            name="replay",
            upstream=_Upstream(self.memory),
            classes_per_doubling=classes_per_doubling,
            budget_bytes=limit_bytes,
        )
        self._held: dict[int, Allocation] = {}

    def take(self, nbytes: int) -> int:
        allocation = self._pool.allocate(nbytes, owner="replay")
        self._held[allocation.address] = allocation
        return allocation.address

    def give_back(self, address: int) -> None:
        self._held.pop(address).release()

    def usage(self) -> Usage:
        state = self._pool.state()
        pieces = free_pieces(state)
        return Usage(state.stats.live_bytes, sum(pieces), max(pieces, default=0))
