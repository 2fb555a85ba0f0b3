"""Order without waiting: what the pool needs to know of streams.

A stream is a queue of work that a device does in order, later than the program that queued it. Memory given back on a
stream may therefore still be read by work that has not run. On the *same* stream that does no harm: whatever the next
owner queues comes after it. On another stream it is a race. So a block that was used on a stream is handed to another
only after an event, recorded there when the block was given back, has passed.

The host's own order (plain NumPy code, native calls that return when they are done) is the stream `None`.
"""

from typing import Protocol, runtime_checkable

__all__ = ["Event", "Stream"]


@runtime_checkable
class Event(Protocol):
    """A point in a stream's work."""

    def done(self) -> bool:
        """True once all work queued before it has run. Never blocks."""
        ...

    def wait(self) -> None:
        """Block until it is done."""
        ...


@runtime_checkable
class Stream(Protocol):
    """A queue of work in order. Hashable by identity."""

    @property
    def name(self) -> str:
        """For people: "copy", "compute"."""
        ...

    def record(self) -> Event:
        """A new event behind everything queued so far."""
        ...
