"""Blocks that were given back while other streams than their own may still use them.

`Allocation.used_on(stream)` says so. At the release an event is recorded on each such stream; until all of them have
passed, the block belongs to nobody.
"""

from collections.abc import Sequence

from aie_tensor.memory.segments import Block
from aie_tensor.memory.streams import Event

__all__ = ["PendingBlocks"]


class PendingBlocks:
    """Used under the pool's lock."""

    def __init__(self) -> None:
        self._events: dict[Block, Sequence[Event]] = {}
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._events)

    def __contains__(self, block: Block) -> bool:
        return block in self._events

    def recount(self) -> None:
        """Sum up anew."""
        self.nbytes = sum(block.nbytes for block in self._events)

    def add(self, block: Block, events: Sequence[Event]) -> None:
        """Hold `block` back until `events` have passed."""
        block.use = "pending"
        self._events[block] = events
        self.nbytes += block.nbytes

    def take_done(self) -> list[Block]:
        """Blocks whose events have all passed; they are pending no longer."""
        done = [block for block, events in list(self._events.items()) if all(event.done() for event in events)]
        taken = [block for block in done if self._events.pop(block, None) is not None]  # a finalizer may be faster
        self.nbytes -= sum(block.nbytes for block in taken)
        return taken

    def events(self) -> list[Event]:
        """All that are waited for, and those behind the blocks' last use on their own streams, which outlive this."""
        waited_for = [event for events in list(self._events.values()) for event in events]
        return waited_for + [block.event for block in list(self._events) if block.event is not None]
