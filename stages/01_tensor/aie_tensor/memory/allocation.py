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
from operator import index as as_int
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aie_tensor.errors import DoubleFreeError, InvalidInputError, UseAfterFreeError
from aie_tensor.memory.events import EventKind
from aie_tensor.memory.history import RefEvent, RefHistory
from aie_tensor.memory.mending import mend, mends
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.segments import Block
from aie_tensor.memory.streams import Stream
from aie_tensor.stacks import Frame, RawStack, resolve

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["Allocation"]


class _View:
    """The base of an array on a block. It dies with the last array that stands on it, and then tells the pool."""

    __slots__ = ("__array_interface__", "_block", "_ended")

    def __init__(self, block: Block, typestr: str, shape: tuple[int, ...], ended: deque[Block]) -> None:
        data = (block.address, False)  # False: writable
        self.__array_interface__ = {"version": 3, "typestr": typestr, "shape": shape, "data": data}
        self._block = block
        block.views += 1  # the caller holds the lock; here, so that no view is counted that does not come to be
        self._ended = ended

    def __del__(self) -> None:
        try:  # noqa: SIM105 (this runs for every view)
            self._ended.append(self._block)  # atomic and lock-free: this may run inside any other code
        except AttributeError:  # never completed
            pass


class Allocation:
    """Made by `MemoryPool.allocate` with one reference. A context manager that releases at the end of the block."""

    __slots__ = (
        "__weakref__",
        "_allocated_at",
        "_block",
        "_freed_at",
        "_history",
        "_owner",
        "_pool",
        "_released",
        "nbytes",
    )

    def __init__(self, pool: "MemoryPool", block: Block, allocated_at: RawStack | None) -> None:
        self._released = True  # until all is there
        self._pool = pool
        self._block = block
        self._allocated_at = allocated_at
        self._freed_at: RawStack | None = None
        self._history: RefHistory | None = block.history
        self._owner = block.owner
        self.nbytes = block.requested_bytes  # as asked for
        self._released = False
        block.references = 1

    @property
    def owner(self) -> Owner:
        """Who asked."""
        return Owner.of(self._owner)

    @property
    def pool(self) -> "MemoryPool":
        """The pool that made it."""
        return self._pool

    @property
    def block(self) -> Block:
        """For the pool."""
        return self._block

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
    def stream(self) -> Stream | None:
        """The stream it was allocated for; None is the host's own order."""
        self._check_alive()
        return self._block.stream

    @property
    def num_references(self) -> int:
        """References now: 1 after `allocate`, 0 after the last `release`."""
        return 0 if self._released else self._block.references

    @property
    def allocated_at(self) -> tuple[Frame, ...]:
        """The call stack of the allocation, innermost first; empty when the ledger was off."""
        return resolve(self._allocated_at or ())

    def history(self) -> tuple[RefEvent, ...]:
        """The last changes of the reference count, oldest first; empty when the ledger was off."""
        return self._history.events() if self._history is not None else ()

    def retain(self) -> "Allocation":
        """Add a reference; returns the same handle."""
        pool = self._pool
        with pool.lock:
            self._check_alive()
            self._block.references += 1
            if pool.ledger.enabled:
                try:
                    self._note(EventKind.RETAIN)
                except BaseException:
                    self._block.references -= 1
                    raise
        return self

    def release(self) -> None:
        """Drop a reference. DoubleFreeError when none is left, naming where it was allocated and where first freed."""
        pool = self._pool
        try:
            with pool.lock:
                if self._released:
                    raise self._misuse(DoubleFreeError, "double free")
                block = self._block
                block.references -= 1
                if block.references == 0:
                    self._released = True
                    if pool.ledger.enabled:
                        self._freed_at = self._note(EventKind.RELEASE)
                        block.freed_at = self._freed_at
                    pool.settle(block)
                elif pool.ledger.enabled:
                    self._note(EventKind.RELEASE)
        except DoubleFreeError:
            raise  # nothing was changed
        except BaseException:  # the reference is gone nevertheless
            pool.torn = True
            mend(pool)
            raise

    def used_on(self, stream: Stream | None) -> None:
        """Work on `stream`, another than it was allocated for, uses the bytes: nobody gets them after the release until
        everything queued there by then has run. The host's own use (None) is over when it returns, so changes nothing.
        """
        with self._pool.lock:
            self._check_alive()
            block = self._block
            if stream is not None and stream is not block.stream and stream not in block.used_on:
                block.used_on.append(stream)

    def array(self, dtype: DTypeLike, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """The first bytes as an array of `shape`; what they hold is undefined until written (zero for exact blocks).

        InvalidInputError when it does not fit in `nbytes`, or on a device whose memory the CPU cannot reach;
        UseAfterFreeError after the last release.
        """
        element, extent = _checked(dtype, shape)
        needed = element.itemsize
        for axis in extent:
            needed *= axis
        if needed > self.nbytes or min(extent, default=0) < 0:
            raise InvalidInputError(f"an array {extent} of {element} needs {needed} bytes; the block has {self.nbytes}")
        with self._pool.lock:
            self._check_alive()
            if self._block.segment.host_bytes() is None:
                raise InvalidInputError(
                    f"NumPy cannot reach memory on {self._pool.device}: use Tensor.cupy(), or allocate from a host pool"
                )
            view = _View(self._block, element.str, extent, self._pool.ended_views)
        try:
            return np.asarray(view)
        except (ValueError, OverflowError) as error:  # more axes than NumPy has, or an axis beside a zero too large
            raise InvalidInputError(f"NumPy makes no array of shape {extent}: {error}", param="shape") from None

    def hold(self) -> object:
        """A view of all bytes that is no array yet: the block stays for as long as the object does. For views on a
        device, and for arrays of other libraries. On the host, `np.asarray` makes it an array of bytes.
        UseAfterFreeError after the last release."""
        with self._pool.lock:
            self._check_alive()
            return _View(self._block, "|u1", (self.nbytes,), self._pool.ended_views)

    def __enter__(self) -> "Allocation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        try:
            if not self._released:  # the handle itself: another finalizer of the same garbage may yet release it
                self._pool.dropped.append(self)
        except AttributeError:  # never completed
            pass

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidInputError(
            "an allocation cannot be copied or pickled, since a copy would give its block back a second time: "
            "retain() adds an owner, and array() gives the bytes"
        )

    def drop(self) -> bool:
        """End whatever references are left; False when there are none. For the pool, which holds its lock."""
        if self._released:
            return False
        self._released = True
        self._block.references = 0
        return True

    def _note(self, kind: EventKind) -> RawStack | None:
        """Tell history and sinks of a change of the count; returns the stack. Only while the ledger is on."""
        ledger, block = self._pool.ledger, self._block
        if self._history is None and ledger.sample_every > 1:
            return None  # left out of the sample: no stack is taken for it at all
        stack = ledger.capture()
        if self._history is not None:
            self._history.add(kind, block.references, stack)
        if ledger.sinks:
            ledger.emit(kind, block.address, block.requested_bytes, block.nbytes, block.stream_name, self._owner, stack)
        return stack

    def _check_alive(self) -> None:
        if self._released:
            raise self._misuse(UseAfterFreeError, "use after free")

    def _misuse(self, kind: type[DoubleFreeError] | type[UseAfterFreeError], what: str) -> Exception:
        return kind(
            f"{what} of {self.nbytes} bytes (owner '{self.owner}')",
            allocated_at=self.allocated_at,
            freed_at=resolve(self._freed_at or ()),
        )


def _checked(dtype: DTypeLike, shape: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Element type and axes. InvalidInputError for what is neither, and for elements that are more than their bytes: a
    pointer of an object would be followed wherever the last owner's bytes lead."""
    try:
        element = np.dtype(dtype)
    except TypeError as error:
        raise InvalidInputError(f"{dtype!r} is no element type: {error}", param="dtype") from None
    if element.kind in "OV":
        raise InvalidInputError(f"memory of a pool holds numbers and text, no {element}", param="dtype")
    try:
        extent = (as_int(shape),) if hasattr(shape, "__index__") else tuple(as_int(axis) for axis in shape)
    except TypeError:
        raise InvalidInputError(f"a shape is made of whole numbers, not {shape!r}", param="shape") from None
    return element, extent


mends(Allocation.release.__code__)
