"""What a replay needs of an allocator, and the system below it: memory that is counted and does not exist."""

from dataclasses import dataclass
from typing import Protocol

from aie_tensor.errors import OutOfMemoryError

__all__ = ["CountedMemory", "Policy", "Usage", "aligned"]

_ALIGNMENT = 64  # as the pool's


@dataclass(frozen=True, slots=True)
class Usage:
    """How an allocator stands at one moment, in bytes. What is neither live nor free waits for nothing here."""

    live: int  # handed out, rounding included
    free: int  # reserved and not handed out
    largest_free: int  # its largest piece


class CountedMemory:
    """Address space that grows upward and is never used twice. `limit_bytes` is all there is; None: no end."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0
        self.peak_bytes = 0
        self.num_calls = 0  # for memory; giving it back is not counted
        self._next = 1 << 20

    def fits(self, nbytes: int) -> bool:
        """Is there so much?"""
        return self.limit_bytes is None or self.reserved_bytes + nbytes <= self.limit_bytes

    def reserve(self, nbytes: int) -> int:
        """The address of `nbytes` bytes. OutOfMemoryError."""
        self.num_calls += 1
        if not self.fits(nbytes):
            raise OutOfMemoryError(f"{nbytes:,} bytes beyond the limit of {self.limit_bytes}")
        self.reserved_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        address = self._next
        # A gap, so that neighbours in number are never neighbours in memory: nothing can be merged across reservations.
        self._next += aligned(nbytes) + (1 << 20)
        return address

    def give_back(self, nbytes: int) -> None:
        """Return what one call reserved."""
        self.reserved_bytes -= nbytes


class Policy(Protocol):
    """An allocator on addresses, made for one replay."""

    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> CountedMemory: ...  # below it
    @property
    def timed(self) -> bool: ...  # False where the time would be that of a stand-in

    def take(self, nbytes: int) -> int:
        """The address of at least `nbytes` > 0 bytes. OutOfMemoryError."""
        ...

    def give_back(self, address: int) -> None:
        """End what `take` gave."""
        ...

    def usage(self) -> Usage:
        """How it stands now."""
        ...


def aligned(nbytes: int) -> int:
    """Rounded up to a cache line."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
