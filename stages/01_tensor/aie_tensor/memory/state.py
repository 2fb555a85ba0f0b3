"""A pool seen from outside: plain data for reports, maps and exports. Made by `MemoryPool.stats` and `.state`."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["BlockState", "ClassState", "PoolState", "PoolStats", "SegmentState", "SlabState"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counters of one pool at one moment. reserved = live + cached + pending; live − requested is lost to rounding."""

    reserved_bytes: int  # taken from the upstream and not yet returned
    live_bytes: int  # blocks in use
    requested_bytes: int  # what their holders asked for
    cached_bytes: int  # blocks in free lists
    pending_bytes: int  # given back, but a stream's event has not passed yet
    mapped_bytes: int  # adopted: memory of others (mapped files) that is only listed here, not part of reserved
    peak_live_bytes: int
    peak_reserved_bytes: int
    num_live: int
    num_allocations: int  # since the start
    num_reuses: int  # of those, served from a free list
    num_dropped: int  # handles that Python collected before anyone released them


@dataclass(frozen=True, slots=True)
class BlockState:
    """One block of a segment."""

    offset: int  # in the segment
    nbytes: int
    requested_bytes: int  # 0 unless live
    state: Literal["live", "free", "pending"]
    owner: str  # "" unless live
    stream: str


@dataclass(frozen=True, slots=True)
class SegmentState:
    """One reservation from the upstream, and how it is cut."""

    address: int
    nbytes: int
    size_class: int | None  # bytes of its blocks; None: one block of exact size
    blocks: tuple[BlockState, ...]  # by offset, without gaps


@dataclass(frozen=True, slots=True)
class ClassState:
    """One size class."""

    nbytes: int
    num_live: int
    num_free: int
    num_pending: int
    num_allocations: int  # requests of this class since the start
    num_reuses: int  # of those, served from a free list of this or the next class


@dataclass(frozen=True, slots=True)
class SlabState:
    """A slab of equal blocks that somebody else hands out (the KV cache), and who has which."""

    owner: str
    num_blocks: int
    block_bytes: int
    used: tuple[tuple[int, str], ...]  # (block, holder), by block


@dataclass(frozen=True, slots=True)
class PoolState:
    """Everything about one pool at one moment."""

    name: str
    device: str
    capacity_bytes: int  # the budget, or what the machine has
    stats: PoolStats
    classes: tuple[ClassState, ...]  # only those ever used
    segments: tuple[SegmentState, ...]
    slabs: tuple[SlabState, ...]
