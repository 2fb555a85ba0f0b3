"""The checker: finds a missing event by reasoning about order, not by waiting for the race to happen.

Every stream has a vector clock: of each stream, how much of its work is surely over before this stream's next work
begins. Three things say so, and nothing else: the order within a stream, waiting for an event, and the host's waiting
(what it queues after that comes later, too). A buffer remembers who wrote it last and who has read it since. Work that
touches it is checked the moment it is queued: whoever touched it before must be covered by the clock. So a program that
forgot an event is told on its first run, however the threads happened to be timed, and nothing has run by then.

(Vector clocks: Fidge 1988 and Mattern 1988; their use for races between memory accesses: Netzer and Miller 1992.)

The threads of the host count as one: what one of them waited for, all have.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from aie_engine.device_streams.errors import MissingDependencyError
from aie_tensor import skip_frames_of
from aie_tensor.stacks import RawStack, StackTable, resolve

__all__ = ["Clock", "StreamBuffer", "StreamChecker"]

skip_frames_of(__file__)

Clock = dict[str, int]  # stream → pieces of its work that are over
HOST = "host"


@dataclass(frozen=True, slots=True)
class _Access:
    """One piece of work, as a buffer remembers it."""

    label: str
    stream: str
    position: int
    stack: RawStack


@dataclass(eq=False, slots=True)
class StreamBuffer:
    """Memory that streams share, under a name for people. Without a checker it is nothing but its array."""

    name: str
    array: npt.NDArray[Any]
    last_write: _Access | None = None
    reads: list[_Access] = field(default_factory=list)  # since the last write, the last one of each stream


class StreamChecker:
    """One for all streams that share buffers; their names must differ. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stacks = StackTable()
        self._clocks: dict[str, Clock] = {HOST: {}}

    def join(self, stream: str) -> None:
        """A new stream. What the host had waited for by then is over before its work begins."""
        with self._lock:
            assert stream not in self._clocks, f"two streams are called {stream!r}: reports could not tell them apart"
            self._clocks[stream] = dict(self._clocks[HOST])

    def leave(self, stream: str) -> None:
        """A stream has ended, with all of its work."""
        with self._lock:
            clock = self._clocks.pop(stream)
            self._cover(HOST, clock)

    def queue(
        self, stream: str, label: str, *, reads: Iterable[StreamBuffer] = (), writes: Iterable[StreamBuffer] = ()
    ) -> None:
        """A piece of work on `stream`. MissingDependencyError when a buffer's earlier use is not surely over; the work
        then counts as never queued."""
        stack = self._stacks.capture()
        with self._lock:
            self._cover(stream, self._clocks[HOST])
            clock = self._clocks[stream]
            access = _Access(label, stream, clock.get(stream, 0) + 1, stack)
            written, read = list(writes), list(reads)
            for buffer in written:
                self._check(buffer, access, clock, [buffer.last_write, *buffer.reads], "write")
            for buffer in read:
                self._check(buffer, access, clock, [buffer.last_write], "read")
            for buffer in read:
                buffer.reads = [other for other in buffer.reads if other.stream != stream] + [access]
            for buffer in written:
                buffer.last_write, buffer.reads = access, []
            clock[stream] = access.position

    def touch(self, label: str, *, reads: Iterable[StreamBuffer] = (), writes: Iterable[StreamBuffer] = ()) -> None:
        """The host itself, now. MissingDependencyError as for `queue`."""
        self.queue(HOST, label, reads=reads, writes=writes)

    def record(self, stream: str) -> Clock:
        """What is over when an event recorded now has passed."""
        with self._lock:
            self._cover(stream, self._clocks[HOST])
            return dict(self._clocks[stream])

    def wait(self, stream: str, event: Clock) -> None:
        """Work queued on `stream` from now on runs after the event; `HOST`: this program does."""
        with self._lock:
            self._cover(stream, event)

    def _cover(self, stream: str, other: Clock) -> None:
        clock = self._clocks[stream]
        for name, position in other.items():
            if clock.get(name, 0) < position:
                clock[name] = position

    def _check(
        self, buffer: StreamBuffer, access: _Access, clock: Clock, others: list[_Access | None], verb: str
    ) -> None:
        for other in others:
            if other is None or clock.get(other.stream, 0) >= other.position:
                continue
            did = "writes" if other is buffer.last_write else "reads"
            raise MissingDependencyError(
                f"{access.label!r} on {_named(access.stream)} would {verb} the buffer {buffer.name!r}, which "
                f"{other.label!r} on {_named(other.stream)} {did}, and no event orders the two: let the second wait "
                f"for an event recorded behind the first",
                first_at=resolve(other.stack),
                second_at=resolve(access.stack),
            )


def _named(stream: str) -> str:
    return "the host" if stream == HOST else f"stream {stream!r}"
