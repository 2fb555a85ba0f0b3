"""One sequence of allocations replayed through several allocators, so that their costs can be compared.

A trace is a list of sizes; the newest `window` buffers are held, the oldest is given back before the next is taken, as
the activations of a few requests in flight are. Each buffer is touched once per page, since that is when a fresh one
costs: the system hands out addresses, and pages only at the first write.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aie_tensor.memory.host import reserve_zeroed
from aie_tensor.memory.naive import NaivePool
from aie_tensor.memory.pool import MemoryPool

__all__ = ["Allocator", "FromNaive", "FromNumpy", "FromPool", "FromSystem", "Loan", "Replay", "replay"]

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Loan:
    """Memory and the way to give it back."""

    memory: NDArray[np.uint8]
    give_back: Callable[[], None]


class Allocator(Protocol):
    """What `replay` drives."""

    name: str

    def take(self, nbytes: int) -> Loan: ...
    def reserved_bytes(self) -> int | None: ...  # None: nobody can tell
    def num_reuses(self) -> int: ...


class FromSystem:
    """A fresh anonymous mapping each time, returned at once: what every allocator pays when it has nothing cached."""

    name = "system (mmap)"

    def __init__(self) -> None:
        self._held = 0

    def take(self, nbytes: int) -> Loan:
        self._held += nbytes
        return Loan(reserve_zeroed(nbytes), lambda: self._give_back(nbytes))

    def _give_back(self, nbytes: int) -> None:
        self._held -= nbytes

    def reserved_bytes(self) -> int | None:
        return self._held

    def num_reuses(self) -> int:
        return 0


class FromNumpy:
    """`numpy.empty` each time. The C library below it keeps a cache of its own: quick, but neither seen nor bounded."""

    name = "numpy.empty"

    def take(self, nbytes: int) -> Loan:
        return Loan(np.empty(nbytes, dtype=np.uint8), lambda: None)

    def reserved_bytes(self) -> int | None:
        return None

    def num_reuses(self) -> int:
        return 0


class FromNaive:
    """The dictionary of exact sizes."""

    name = "naive pool"

    def __init__(self) -> None:
        self._pool = NaivePool()

    def take(self, nbytes: int) -> Loan:
        buffer = self._pool.take(nbytes)
        return Loan(buffer, lambda: self._pool.give_back(buffer))

    def reserved_bytes(self) -> int | None:
        return self._pool.reserved_bytes

    def num_reuses(self) -> int:
        return self._pool.num_reuses


class FromPool:
    """`MemoryPool`, with a reference count and a view for each loan."""

    def __init__(self, pool: MemoryPool, name: str = "MemoryPool") -> None:
        self.name = name
        self.pool = pool

    def take(self, nbytes: int) -> Loan:
        block = self.pool.allocate(nbytes, owner="replay")
        return Loan(block.array(np.uint8, nbytes), block.release)

    def reserved_bytes(self) -> int | None:
        return self.pool.stats().reserved_bytes

    def num_reuses(self) -> int:
        return self.pool.stats().num_reuses


@dataclass(frozen=True, slots=True)
class Replay:
    """What one replay cost."""

    name: str
    allocation_us: float  # median time of take and give back
    touch_us: float  # median time of the first write to every page
    peak_requested_bytes: int  # the most that was asked for at one time
    peak_reserved_bytes: int | None  # the most that the allocator held for it
    reuse: float  # share of requests served without asking the system, 0–1


def replay(sizes: Sequence[int], allocator: Allocator, *, window: int, clock: Callable[[], float]) -> Replay:
    """Drive `allocator` through the trace. `sizes` in bytes; `clock` in seconds, e.g. `time.perf_counter`."""
    held: deque[Loan] = deque()
    requested = peak_requested = 0
    peak_reserved: int | None = None
    allocation_s: list[float] = []
    touch_s: list[float] = []
    for nbytes in sizes:
        started = clock()
        if len(held) == window:
            requested -= held[0].memory.nbytes
            held.popleft().give_back()
        loan = allocator.take(nbytes)
        taken = clock()
        loan.memory[::PAGE] = 1
        touch_s.append(clock() - taken)
        allocation_s.append(taken - started)
        held.append(loan)
        requested += nbytes
        peak_requested = max(peak_requested, requested)
        reserved = allocator.reserved_bytes()
        if reserved is not None:
            peak_reserved = max(peak_reserved or 0, reserved)
    for loan in held:
        loan.give_back()
    return Replay(
        allocator.name,
        allocation_us=median(allocation_s) * 1e6,
        touch_us=median(touch_s) * 1e6,
        peak_requested_bytes=peak_requested,
        peak_reserved_bytes=peak_reserved,
        reuse=allocator.num_reuses() / len(sizes),
    )
