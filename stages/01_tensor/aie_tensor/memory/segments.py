"""`Segment` and `Block`: how reserved memory is cut.

    upstream ──▶ Segment 1 MiB ──▶ 1024 Blocks of 1 KiB      small classes share one reservation
    upstream ──▶ Segment 4 MiB ──▶ 1 Block of 4 MiB          larger ones have their own

All blocks of a segment are of one class, so none is ever split or merged. The price is external fragmentation of one
kind: a segment goes back only when all its blocks are free, so one live block of 1 KiB can pin a mebibyte.
"""

from typing import TYPE_CHECKING, Any, Literal

from aie_tensor.memory.owner import Owner
from aie_tensor.memory.streams import Event, Stream
from aie_tensor.memory.upstream import Region
from aie_tensor.stacks import RawStack

if TYPE_CHECKING:
    from aie_tensor.memory.history import RefHistory

__all__ = ["Block", "BlockUse", "Segment"]


# Where a block is in its life: in a free list; held by references or views; given back, but work that reads it may be
# queued on a stream.
BlockUse = Literal["free", "live", "pending"]


class Block:
    """A run of bytes, and who holds it now. Compared by identity."""

    __slots__ = (
        "address",
        "allocated_at",
        "event",
        "freed_at",
        "history",
        "idle_since",
        "nbytes",
        "owner",
        "recorded",
        "references",
        "requested_bytes",
        "segment",
        "size_class",
        "stream",
        "use",
        "used_on",
        "views",
    )

    def __init__(self, segment: "Segment", address: int, nbytes: int) -> None:
        self.segment = segment
        self.address = address
        self.nbytes = nbytes
        self.size_class = segment.size_class  # None: of exact size, goes back to the upstream
        self.use: BlockUse = "free"
        self.references = 0
        self.views = 0
        self.requested_bytes = 0
        self.owner: str | Owner = ""
        self.stream: Stream | None = None  # where it was last handed out; None: the host's own order
        self.used_on: list[Stream] = []  # other streams that use it
        self.event: Event | None = None  # in `stream`, behind its last use; None: nothing to wait for
        self.recorded = False  # the ledger knows it
        self.history: RefHistory | None = None
        self.idle_since = 0  # number of the last allocation before it was freed
        self.allocated_at: RawStack | None = None
        self.freed_at: RawStack | None = None

    def idle(self) -> bool:
        """True when nobody holds it and no stream may still touch it."""
        if self.use != "free":
            return False
        if self.event is not None and self.event.done():
            self.event = None  # so that it is asked once
        return self.event is None

    @property
    def stream_name(self) -> str:
        """For reports: "" for the host."""
        return self.stream.name if self.stream is not None else ""


class Segment:
    """One reservation and its equal blocks."""

    __slots__ = ("address", "blocks", "nbytes", "region", "size_class")

    def __init__(self, region: Region, size_class: int | None, block_bytes: int) -> None:
        self.region: Region | None = region  # None: returned. Old handles keep the segment, but not its memory
        self.address = region.address
        self.nbytes = region.nbytes
        self.size_class = size_class
        starts = range(region.address, region.address + region.nbytes, block_bytes)
        self.blocks = [Block(self, address, block_bytes) for address in starts]

    def idle(self) -> bool:
        """True when all its blocks are."""
        return all(block.idle() for block in self.blocks)

    def host_bytes(self) -> Any:
        """The bytes as an array, None where the CPU cannot reach them."""
        assert self.region is not None, "a returned segment has no bytes"
        return self.region.host
