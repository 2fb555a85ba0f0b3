"""Where a pool's memory comes from: the one interface between the pool and a kind of memory."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Region", "Upstream"]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A run of bytes taken from an upstream."""

    address: int  # a multiple of 64
    nbytes: int
    keep_alive: Any  # the object whose end would free it
    host: NDArray[np.uint8] | None  # the bytes, where the CPU can reach them


class Upstream(Protocol):
    """Takes memory from the system or a device and gives it back. Thread-safe."""

    @property
    def device(self) -> str:
        """ "cpu", "cuda:0"."""
        ...

    @property
    def granularity(self) -> int:
        """Exact reservations are rounded up to this many bytes (a page; 512 on CUDA)."""
        ...

    def reserve(self, nbytes: int, *, zeroed: bool) -> Region:
        """`nbytes` > 0 fresh bytes. MemoryError where there are none."""
        ...

    def give_back(self, region: Region) -> None:
        """Return it. The caller promises that no work on it is outstanding."""
        ...

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set every byte."""
        ...

    def find_others(self, address: int, nbytes: int, byte: int) -> tuple[int, int] | None:
        """(how many bytes are not `byte`, offset of the first of them); None when all are."""
        ...

    def capacity_bytes(self) -> int:
        """What the machine or the device has in all."""
        ...

    def process_bytes(self) -> int | None:
        """What this process uses of it in all, inside and outside of pools; None where nobody tells."""
        ...
