"""Running totals over events."""

from dataclasses import dataclass, field

from aie_tensor.memdebug.recorded import FIRST_SLAB_ADDRESS, RecordedEvent
from aie_tensor.memory.events import EventKind

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """What is held after the events so far. What was held before the first is not counted, nor is its end."""

    reserved: int = 0
    live: int = 0
    requested: int = 0
    slab_blocks: int = 0  # bytes of slab blocks in use; part of live
    _blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # address → (asked for, taken)
    _segments: dict[int, int] = field(default_factory=dict)

    def add(self, event: RecordedEvent) -> None:
        """Count one event."""
        if event.kind is EventKind.ALLOCATE and event.address:
            self._end(event.address)  # its end is missing: sampled, or a lost line
            self._blocks[event.address] = event.nbytes, event.block_bytes
            self._change(event.address, event.nbytes, event.block_bytes)
        elif event.kind is EventKind.FREE:
            self._end(event.address)
        elif event.kind is EventKind.SEGMENT_RESERVE:
            self.reserved += event.block_bytes - self._segments.get(event.address, 0)
            self._segments[event.address] = event.block_bytes
        elif event.kind is EventKind.SEGMENT_RETURN:
            self.reserved -= self._segments.pop(event.address, 0)

    def counters(self) -> dict[str, int]:
        """The totals by name, in bytes."""
        return {
            "reserved": self.reserved,
            "live": self.live,
            "requested": self.requested,
            "slab blocks in use": self.slab_blocks,
        }

    def _end(self, address: int) -> None:
        nbytes, block_bytes = self._blocks.pop(address, (0, 0))
        self._change(address, -nbytes, -block_bytes)

    def _change(self, address: int, nbytes: int, block_bytes: int) -> None:
        if address >= FIRST_SLAB_ADDRESS:
            self.slab_blocks += block_bytes
        else:
            self.requested += nbytes
            self.live += block_bytes
