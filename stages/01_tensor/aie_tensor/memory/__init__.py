"""Memory: the naive pool to read first, the pool with size classes and reference counts, the leak ledger."""

from aie_tensor.memory.allocation import Allocation
from aie_tensor.memory.history import RefEvent, RefHistory
from aie_tensor.memory.ledger import LeakGroup, Ledger, LedgerEntry, Mark
from aie_tensor.memory.naive import NaivePool
from aie_tensor.memory.pool import MemoryPool, PoolStats

__all__ = [
    "Allocation",
    "LeakGroup",
    "Ledger",
    "LedgerEntry",
    "Mark",
    "MemoryPool",
    "NaivePool",
    "PoolStats",
    "RefEvent",
    "RefHistory",
]
