"""A stream that runs its work when a test says so, and notices when a block was reused too early.

A real device hides such a race almost always. Here work is a list of writes and checks on the raw bytes of allocations,
as kernels do with the pointers they were given: `advance` runs them in order, and a check that finds other bytes than
were written to the block raises `HazardError`. Between queueing and `advance` the program may release, reuse and trim.
"""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from aie_tensor.errors import HazardError, InvalidInputError
from aie_tensor.memory.allocation import Allocation

__all__ = ["SimulatedEvent", "SimulatedStream"]


class SimulatedEvent:
    """A point in a simulated stream's work."""

    def __init__(self, stream: "SimulatedStream", position: int) -> None:
        self._stream = stream
        self._position = position

    def done(self) -> bool:
        """True once all work queued before it has run."""
        return self._stream.num_run >= self._position

    def wait(self) -> None:
        """Run the stream up to here."""
        while not self.done():
            self._stream.advance(1)


class SimulatedStream:
    """A queue of work on host memory, for one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: deque[Callable[[], None]] = deque()
        self.num_queued = 0
        self.num_run = 0

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    def record(self) -> SimulatedEvent:
        """An event behind everything queued so far."""
        return SimulatedEvent(self, self.num_queued)

    def write(self, allocation: Allocation, byte: int) -> None:
        """Queue: fill the allocation with `byte`, 0 to 255."""
        memory = _bytes_of(allocation)
        self._queue(lambda: memory.fill(byte))

    def check(self, allocation: Allocation, byte: int) -> None:
        """Queue: raise HazardError unless every byte of the allocation is `byte`."""
        memory, owner = _bytes_of(allocation), str(allocation.owner)

        def work() -> None:
            wrong = memory[memory != byte]
            if wrong.size:
                raise HazardError(
                    f"stream '{self._name}' found {wrong.size} of {memory.size} bytes of '{owner}' to be other than "
                    f"{byte}, the first {wrong[0]}: the block was reused before the stream was done with it"
                )

        self._queue(work)

    def advance(self, n: int | None = None) -> None:
        """Run the next `n` pieces of work, or all."""
        for _ in range(len(self._work) if n is None else min(n, len(self._work))):
            work = self._work.popleft()
            try:
                work()
            finally:
                self.num_run += 1  # after the work: other threads' pools ask `done` meanwhile

    def _queue(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self.num_queued += 1


def _bytes_of(allocation: Allocation) -> NDArray[np.uint8]:
    """Its bytes, as a device sees them: an address that keeps no block from being reused (but the segment mapped, so
    that a broken pool gives an error here and not a crash)."""
    segment = allocation._block.segment
    host = segment.host_bytes()
    if host is None:
        raise InvalidInputError(f"a simulated stream works on host memory, not on {allocation.pool.device}")
    start = allocation.address - segment.address
    found: NDArray[np.uint8] = host[start : start + allocation.nbytes]
    return found
