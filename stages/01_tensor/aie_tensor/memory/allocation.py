"""`Allocation`: a counted handle on a block of a pool.

Who keeps the memory alive: references and views.

    pool.allocate() ──▶ Allocation ──▶ Block ◀── view ◀── ndarray ◀── its slices
                        references      bytes     (base chain)

`retain` adds a reference, `release` drops one. Every array made by `array()` is a view; it counts as long as the array
or any slice of it exists. The block goes back to the pool when references *and* views are gone. So the last `release`
ends the handle at once (touching it raises `UseAfterFreeError`), but a forgotten array can never see its bytes reused
under it: the price of forgetting is memory that comes back late, not wrong numbers. A handle that Python drops without
`release` gives its references back; `PoolStats.num_dropped` counts those.
"""

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aie_tensor.errors import DoubleFreeError, InvalidInputError, UseAfterFreeError
from aie_tensor.stacks import Frame, RawStack, resolve

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["Allocation", "Block"]


class Block:
    """A run of bytes that a pool took from the system, and who holds it now."""

    __slots__ = ("address", "memory", "nbytes", "owner", "references", "requested_bytes", "size_class", "views")

    def __init__(self, memory: NDArray[np.uint8], size_class: int | None) -> None:
        self.memory = memory
        self.address: int = memory.ctypes.data
        self.nbytes: int = memory.nbytes
        self.size_class = size_class  # None: of exact size, goes back to the system
        self.references = 0
        self.views = 0
        self.requested_bytes = 0
        self.owner = ""


class _View:
    """The base of an array on a block. It dies with the last array that stands on it, and then tells the pool."""

    __slots__ = ("__array_interface__", "_block", "_ended")

    def __init__(self, block: Block, typestr: str, shape: tuple[int, ...], ended: deque[Block]) -> None:
        data = (block.address, False)  # False: writable
        self.__array_interface__ = {"version": 3, "typestr": typestr, "shape": shape, "data": data}
        self._block = block
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append(self._block)  # atomic and lock-free: this may run inside any other code


class Allocation:
    """Made by `MemoryPool.allocate` with one reference. A context manager that releases at the end of the block."""

    __slots__ = ("__weakref__", "_allocated_at", "_block", "_freed_at", "_pool", "_released", "nbytes", "owner")

    def __init__(self, pool: "MemoryPool", block: Block, allocated_at: RawStack | None) -> None:
        self._pool = pool
        self._block = block
        self._allocated_at = allocated_at
        self._freed_at: RawStack | None = None
        self._released = False
        self.nbytes = block.requested_bytes  # as asked for
        self.owner = block.owner

    @property
    def address(self) -> int:
        """Address of the first byte, a multiple of 64."""
        self._check_alive()
        return self._block.address

    @property
    def block_bytes(self) -> int:
        """Bytes of the block behind it, at least `nbytes`."""
        self._check_alive()
        return self._block.nbytes

    @property
    def num_references(self) -> int:
        """References now: 1 after `allocate`, 0 after the last `release`."""
        return 0 if self._released else self._block.references

    @property
    def allocated_at(self) -> tuple[Frame, ...]:
        """The call stack of the allocation, innermost first; empty when the ledger was off."""
        return resolve(self._allocated_at or ())

    def retain(self) -> "Allocation":
        """Add a reference; returns the same handle."""
        with self._pool.lock:
            self._check_alive()
            self._block.references += 1
        return self

    def release(self) -> None:
        """Drop a reference. DoubleFreeError when none is left, naming where it was allocated and where first freed."""
        with self._pool.lock:
            if self._released:
                raise self._misuse(DoubleFreeError, "double free")
            self._block.references -= 1
            if self._block.references == 0:
                self._released = True
                self._freed_at = self._pool.ledger.capture()
                self._pool.settle(self._block)

    def array(self, dtype: DTypeLike, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """The first bytes as an array of `shape`; what they hold is undefined until written (zero for exact blocks).

        InvalidInputError when it does not fit in `nbytes`; UseAfterFreeError after the last release.
        """
        element = np.dtype(dtype)
        extent = (shape,) if isinstance(shape, int) else tuple(shape)
        needed = element.itemsize
        for axis in extent:
            needed *= axis
        if needed > self.nbytes or min(extent, default=0) < 0:
            raise InvalidInputError(f"an array {extent} of {element} needs {needed} bytes; the block has {self.nbytes}")
        with self._pool.lock:
            self._check_alive()
            self._block.views += 1
        return np.asarray(_View(self._block, element.str, extent, self._pool.ended_views))

    def __enter__(self) -> "Allocation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if not self._released:
            self._pool.dropped.append(self._block)

    def _check_alive(self) -> None:
        if self._released:
            raise self._misuse(UseAfterFreeError, "use after free")

    def _misuse(self, kind: type[DoubleFreeError] | type[UseAfterFreeError], what: str) -> Exception:
        return kind(
            f"{what} of {self.nbytes} bytes (owner {self.owner or 'unnamed'!r})",
            allocated_at=self.allocated_at,
            freed_at=resolve(self._freed_at or ()),
        )
