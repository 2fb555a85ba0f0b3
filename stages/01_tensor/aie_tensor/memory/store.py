"""The lower half of the pool: blocks that nobody holds, and how they come and go.

    upstream ── reserve ──▶ free ── take ──▶ (live: the pool hands it out)
        ▲                   ▲  ▲                      │
        └──── give back ────┘  └── events passed ── retire ──▶ pending

The upper half (`pool.py`) counts references and bytes, and holds the lock around every call here.
"""

from collections.abc import Iterable, Sequence

from aie_tensor.memory.classes import ALIGNMENT, SizeClasses
from aie_tensor.memory.events import EventKind
from aie_tensor.memory.filling import Filler
from aie_tensor.memory.freelists import FreeLists
from aie_tensor.memory.ledger import Ledger
from aie_tensor.memory.pending import PendingBlocks
from aie_tensor.memory.segments import Block, Segment
from aie_tensor.memory.streams import Event, Stream
from aie_tensor.memory.upstream import Upstream

__all__ = ["BlockStore"]


class BlockStore:
    """See the module's text. Bytes throughout."""

    def __init__(
        self, upstream: Upstream, classes: SizeClasses, segment_bytes: int, filler: Filler, ledger: Ledger
    ) -> None:
        self.upstream = upstream
        self.classes = classes
        self.segment_bytes = segment_bytes
        self.filler = filler
        self.ledger = ledger
        self.free = FreeLists(len(classes.sizes))
        self.pending = PendingBlocks()
        self.segments: dict[Segment, None] = {}
        self.reserved_bytes = self.peak_reserved_bytes = 0

    def take(self, size_class: int, stream: Stream | None) -> Block | None:
        """A free block of this class or the next that `stream` may use now. WriteAfterFreeError: it is free again."""
        lists = self.free.host if stream is None else self.free.of(stream)
        cached = lists[size_class] or lists[size_class + 1]
        try:
            block = cached.popitem()[0] if cached else self.free.steal(size_class, stream)
        except KeyError:  # making the pair that popitem returns started a collection, whose finalizers took the last
            block = self.free.steal(size_class, stream)
        if block is not None and self.filler.active:
            self._check(block)
        return block

    def take_larger(self, size_class: int, stream: Stream | None) -> Block | None:
        """A free block of any larger class that `stream` may use now."""
        block = self.free.steal_larger(size_class, stream)
        if block is not None and self.filler.active:
            self._check(block)
        return block

    def reserve(self, size_class: int | None, block_bytes: int, room_bytes: int | None) -> Block | None:
        """A block of fresh memory, at most `room_bytes` of it: of a segment that also gives its other blocks to the
        free lists where the class is small, else by itself. None where the upstream has none."""
        wanted = [block_bytes]
        if size_class is not None and block_bytes * 4 < self.segment_bytes:
            whole = self.segment_bytes // block_bytes * block_bytes
            wanted.insert(0, whole)  # the single block is for when a whole segment does not fit
        for nbytes in wanted:
            if room_bytes is not None and nbytes > room_bytes:
                continue
            zeroed = size_class is None or self.filler.mode == "zero"
            try:
                region = self.upstream.reserve(nbytes, zeroed=zeroed)
            except MemoryError:
                continue
            assert region.address % ALIGNMENT == 0, f"{self.upstream.device} gave address {region.address:#x}"
            segment = Segment(region, size_class, block_bytes)
            self.segments[segment] = None
            self.reserved_bytes += nbytes
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
            if size_class is not None:
                self.filler.on_reserve(segment)
                for spare in reversed(segment.blocks[1:]):  # so that they are taken in the order of their addresses
                    self.free.add(spare)
            self._tell(EventKind.SEGMENT_RESERVE, segment)
            return segment.blocks[0]
        return None

    def events_behind(self, block: Block) -> list[Event]:
        """What has to pass before `block` may be free. Notes in the block what has to before it changes streams."""
        events = [stream.record() for stream in block.used_on]
        if block.stream is not None:
            block.event = block.stream.record()
            if block.size_class is None or self.filler.active:
                events.append(block.event)  # before the bytes are returned or filled, the work on them must be over
        return events

    def retire(self, block: Block, events: Sequence[Event]) -> None:
        """`block` is held no longer."""
        block.used_on = []
        if events:
            self.pending.add(block, events)
        else:
            self._shelve(block)

    def settle_pending(self) -> None:
        """Free the blocks whose events have passed."""
        for block in self.pending.take_done():
            if self.ledger.enabled:
                self.ledger.emit(EventKind.REUSABLE, block.address, 0, block.nbytes, block.stream_name, block.owner)
            self._shelve(block)

    def events(self) -> list[Event]:
        """All that have to pass before every block outside of users' hands may be returned."""
        return self.pending.events() + [block.event for block in self.free.blocks() if block.event is not None]

    def give_back(self, segments: Iterable[Segment]) -> int:
        """Return idle segments to the upstream; the bytes returned."""
        returned = 0
        for segment in segments:
            removed = [block for block in segment.blocks if self.free.remove(block)]
            if len(removed) == len(segment.blocks) and segment.idle():
                self._return(segment)
                returned += segment.nbytes
            else:  # a finalizer that ran in between took one
                for block in removed:
                    self.free.add(block)
        return returned

    def _shelve(self, block: Block) -> None:
        """Nobody uses `block` and no stream touches it, except perhaps its own."""
        if block.size_class is None:
            self._return(block.segment)
        else:
            self.filler.on_free(block)
            self.free.add(block)

    def _check(self, block: Block) -> None:
        try:
            self.filler.on_reuse(block)
        except BaseException:
            self.free.add(block)
            raise

    def _return(self, segment: Segment) -> None:
        region, segment.region = segment.region, None
        assert region is not None, "a segment is returned once"
        del self.segments[segment]
        self.reserved_bytes -= segment.nbytes
        self._tell(EventKind.SEGMENT_RETURN, segment)
        self.upstream.give_back(region)

    def _tell(self, kind: EventKind, segment: Segment) -> None:
        if self.ledger.enabled:
            self.ledger.emit(kind, segment.address, 0, segment.nbytes, "", "")
