"""A process's memory at one moment, as data that can be saved, sent, compared and drawn."""

from dataclasses import dataclass

from aie_tensor.memory.state import PoolState

__all__ = ["SNAPSHOT_VERSION", "HeldGroup", "MemorySnapshot"]

SNAPSHOT_VERSION = 1


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Everything still held that one call stack asked for, for one kind of owner."""

    what: str  # `Owner.what`, so without request ids: a leak is one place in the code, whatever request met it
    model: str
    worker: str
    stage: str
    stack: tuple[str, ...]  # "file:line in function", innermost first
    count: int
    nbytes: int  # as asked for
    block_bytes: int  # as taken
    oldest_s: float
    requests: tuple[str, ...]  # ids of up to three of the requests that hold it


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """See the module's text. Bytes throughout."""

    version: int
    taken_at: float  # Unix time
    process: str  # "engine-0", "script"
    pid: int
    num_requests: int  # ended since the start, however they ended
    sample_every: int  # 0: the ledger was off, 1: every allocation was recorded, 64: one in 64
    pools: tuple[PoolState, ...]
    groups: tuple[HeldGroup, ...]  # most bytes first
    ages: tuple[tuple[str, int, int], ...]  # histogram of what is held: (label as "< 1 s", count, bytes)
    rss_bytes: int
    num_lost: int = 0  # held things that were not recorded, since the ledger was off or sampling when they were made
