"""What happens to memory, one record each: the common language of the ledger, the ring, the log and the exports."""

from enum import IntEnum
from typing import NamedTuple

from aie_tensor.memory.owner import Owner
from aie_tensor.stacks import RawStack

__all__ = ["EventKind", "MemoryEvent"]


class EventKind(IntEnum):
    """The numbers are written to files: they only grow."""

    ALLOCATE = 1
    FREE = 2  # the last reference went; the block may still be pending
    RETAIN = 3
    RELEASE = 4
    SEGMENT_RESERVE = 5  # taken from the upstream
    SEGMENT_RETURN = 6
    REQUEST = 7  # a request ended: the unit in which growth is counted
    REUSABLE = 8  # a pending block's events have passed


class MemoryEvent(NamedTuple):
    """One event. `address` identifies the block from ALLOCATE to FREE; it may be reused afterwards."""

    kind: EventKind
    at_s: float  # monotonic
    address: int
    nbytes: int  # as asked for
    block_bytes: int  # as taken
    stream: str  # "" for the host's own order
    owner: Owner
    stack: RawStack | None  # None where none was taken
