"""What an event is to those who read it: the same for the log's and the ring's."""

from typing import Protocol

from aie_tensor.memory.events import EventKind
from aie_tensor.memory.owner import Owner

__all__ = ["FIRST_SLAB_ADDRESS", "RecordedEvent"]

# Blocks of slabs lie inside memory that is counted already. They have no addresses of their own, and events name them
# by numbers from here on (see `BlockSlab`); no process maps memory there.
FIRST_SLAB_ADDRESS = 1 << 62


class RecordedEvent(Protocol):
    """A `MemoryEvent` whose stack is text: `LoggedEvent`, `RingEvent`."""

    @property
    def kind(self) -> EventKind: ...
    @property
    def at_s(self) -> float: ...  # monotonic, of the process that wrote it
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...  # as asked for
    @property
    def block_bytes(self) -> int: ...  # as taken
    @property
    def stream(self) -> str: ...
    @property
    def owner(self) -> Owner: ...
    @property
    def stack(self) -> tuple[str, ...]: ...  # "file:line in function", innermost first; empty where none was taken
