"""`Tensor`: a shape, strides and an element type on a block of a pool, on the CPU or on a GPU.

A tensor owns the allocation's references: `release` when done, `retain` for a second owner. What `reshape`, `transpose`
and slicing give is a view: it copies nothing, owns no reference, and keeps the bytes alive by existing, also after the
tensor it came from is released; the block then returns to the pool when the last view is gone (see
`memory/allocation.py`). So does every array that `numpy` or `cupy` gave.

Threads: counting is atomic (the pool's lock), everything else about a tensor never changes. The elements themselves are
as shared as those of any array.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from aie_tensor.dtypes import DType
from aie_tensor.errors import InvalidInputError
from aie_tensor.layout import Index, Layout
from aie_tensor.memory import Allocation, MemoryPool
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.streams import Stream

if TYPE_CHECKING:
    from aie_tensor.memory.cuda import CudaStream

__all__ = ["Tensor"]

CPU = "cpu"


class Tensor:
    """An array whose memory comes from a pool. Only types that NumPy knows; quantized weights are a `Matrix`."""

    __slots__ = (
        "__weakref__", "_address", "_allocation", "_hold", "_layout", "_numpy_dtype", "base", "device", "dtype"
    )  # fmt: skip

    def __init__(self, allocation: Allocation, dtype: DType, shape: tuple[int, ...]) -> None:
        """Take over one reference of `allocation`. InvalidInputError for BF16, quantized types, bad shapes, and shapes
        that do not fit."""
        layout = _layout(dtype, shape)
        nbytes = layout.num_elements * layout.itemsize
        if nbytes > allocation.nbytes:
            raise InvalidInputError(f"{layout.shape} needs {nbytes} bytes; the allocation has {allocation.nbytes}")
        self._allocation = allocation
        self._layout = layout
        self._numpy_dtype = dtype.numpy
        self._hold: Any = None  # keeps the block of a view alive, and knows its address
        self._address = allocation.address
        self.base: Tensor | None = None  # the tensor that a view stands on, never itself a view
        self.device = allocation.pool.device
        self.dtype = dtype

    @classmethod
    def empty(
        cls,
        pool: MemoryPool,
        shape: tuple[int, ...],
        dtype: DType = DType.F32,
        *,
        owner: str | Owner = "",
        stream: Stream | None = None,
    ) -> "Tensor":
        """A tensor of undefined content, used on `stream` first. OutOfMemoryError; InvalidInputError for BF16,
        quantized types, axes that are no counts, and shapes of more than 2**63 bytes."""
        layout = _layout(dtype, shape)  # before memory is taken
        allocation = pool.allocate(layout.num_elements * layout.itemsize, owner=owner, stream=stream)
        return cls(allocation, dtype, layout.shape)

    @classmethod
    def zeros(
        cls,
        pool: MemoryPool,
        shape: tuple[int, ...],
        dtype: DType = DType.F32,
        *,
        owner: str | Owner = "",
        stream: Stream | None = None,
    ) -> "Tensor":
        """As `empty`, filled with zero; on a GPU in the order of `stream`."""
        tensor = cls.empty(pool, shape, dtype, owner=owner, stream=stream)
        if tensor.device == CPU:
            tensor.numpy()[...] = 0
        else:
            _transfer().fill(tensor._device(), tensor.address, tensor.nbytes, 0, stream)
        return tensor

    @classmethod
    def from_array(cls, pool: MemoryPool, array: NDArray[Any], *, owner: str | Owner = "") -> "Tensor":
        """A copy of `array` in the pool. InvalidInputError for element types without a counterpart."""
        source = _array(array)
        return cls.empty(pool, source.shape, DType.from_numpy(source.dtype), owner=owner).copy_from(source)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self._layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis, as NumPy's; negative for a reversed axis."""
        return self._layout.strides

    @property
    def is_contiguous(self) -> bool:
        """True when the elements lie in order without gaps."""
        return self._layout.is_contiguous

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without the pool's rounding."""
        return self._layout.num_elements * self._layout.itemsize

    @property
    def is_view(self) -> bool:
        """True for what `reshape`, `transpose` and slicing gave."""
        return self.base is not None

    @property
    def address(self) -> int:
        """Address of the first element, on the tensor's device. UseAfterFreeError after the last release (not for
        views)."""
        block = self._address if self.is_view else self._allocation.address
        return block + self._layout.offset

    def numpy(self) -> NDArray[Any]:
        """The elements as an array that shares the memory. UseAfterFreeError after the last release (not for views);
        InvalidInputError for memory that the CPU cannot reach."""
        if self.device != CPU:
            raise InvalidInputError(
                f"NumPy cannot reach this tensor on {self.device}: .to_host() copies it, .cupy() shares it",
                param="device",
            )
        assert self._numpy_dtype is not None, self.dtype
        if self._hold is None:
            return self._allocation.array(self._numpy_dtype, self.shape)
        layout = self._layout
        block = np.asarray(self._hold)
        return np.ndarray(layout.shape, self._numpy_dtype, block, layout.offset, layout.strides)

    def cupy(self) -> Any:
        """The elements as a `cupy.ndarray` that shares the memory; errors as `numpy`. Work on another stream than the
        tensor was allocated for has to be told to the pool: `used_on`."""
        if self.device == CPU:
            raise InvalidInputError("this tensor is on the CPU: .numpy() shares it with NumPy", param="device")
        hold = self._allocation.hold() if self._hold is None else self._hold
        block = (self._address, self._allocation.nbytes)
        return _transfer().as_cupy(self._device(), self.address, self._numpy_dtype, self._layout, block, hold)

    def to_host(self, *, stream: "CudaStream | None" = None) -> NDArray[Any]:
        """A copy in ordinary host memory. From a GPU it comes after everything queued on `stream`, without one after
        all work of the device, and this waits for it. UseAfterFreeError as `numpy`."""
        if self.device == CPU:
            return self.numpy().copy()
        host = np.empty(self.shape, self._numpy_dtype)
        layout = Layout.contiguous(self.shape, self._layout.itemsize)
        _transfer().copy(self._device(), host.ctypes.data, layout, self.address, self._layout, stream)
        if stream is not None:
            stream.synchronize()
        return host

    def copy_from(self, source: "Tensor | NDArray[Any]", *, stream: "CudaStream | None" = None) -> "Tensor":
        """Copy every element of `source` here; returns this tensor. InvalidInputError unless shape and type agree.

        From and to a GPU it comes after all work of the device and is done when this returns; or with `stream`, between
        tensors, it is only queued there, and the pools keep both blocks until it has run, however early they are
        released. Such copies overlap with other work if the host's side is pinned memory (`PinnedUpstream`).
        """
        other = source if isinstance(source, Tensor) else _array(source)
        dtype = other.dtype if isinstance(other, Tensor) else DType.from_numpy(other.dtype)
        if (other.shape, dtype) != (self.shape, self.dtype):
            raise InvalidInputError(
                f"cannot copy {dtype.value} {other.shape} into {self.dtype.value} {self.shape}: they must be the same",
                param="source",
            )
        if self.device == CPU and (not isinstance(other, Tensor) or other.device == CPU):
            if stream is not None:
                raise InvalidInputError("a stream orders copies from or to a GPU, not within the host", param="stream")
            self.numpy()[...] = other.numpy() if isinstance(other, Tensor) else other
        elif isinstance(other, Tensor):
            self._copy_tensor(other, stream)
        else:
            self._copy_array(other, stream)
        return self

    def used_on(self, stream: Stream) -> None:
        """Work queued on `stream` uses the elements: the block waits for it after the release."""
        self._allocation.used_on(stream)

    def reshape(self, *shape: int) -> "Tensor":
        """The same elements in another shape, one axis may be −1. InvalidInputError where that would need a copy."""
        return self._view(self._layout.reshape(shape))

    def transpose(self, *axes: int) -> "Tensor":
        """A view whose axis k is this one's axis `axes[k]`; without arguments the axes in reverse order."""
        return self._view(self._layout.transpose(axes))

    def __getitem__(self, index: Index) -> "Tensor":
        """A view of the part that integers and slices pick. IndexError beyond the end; InvalidInputError for indices
        that would copy (arrays, lists)."""
        return self._view(self._layout.pick(index))

    def retain(self) -> "Tensor":
        """Add an owner; returns the same tensor. For views not needed, and not allowed after the last release."""
        self._allocation.retain()
        return self

    def release(self) -> None:
        """Drop an owner. DoubleFreeError when none is left."""
        self._allocation.release()

    def __enter__(self) -> "Tensor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; a view owns no reference and has nothing to give back."""
        if not self.is_view:
            self.release()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidInputError(
            "a tensor cannot be copied or pickled, since both would own the same references: to_host() gives an array, "
            "and copy_from() fills another tensor"
        )

    def __repr__(self) -> str:
        place = "" if self.device == CPU else f", {self.device}"
        return f"Tensor({self.dtype.value}, {self.shape}{place}{', view' if self.is_view else ''})"

    def _view(self, layout: Layout) -> "Tensor":
        view = Tensor.__new__(Tensor)
        view._allocation = self._allocation
        view._layout = layout
        view._numpy_dtype = self._numpy_dtype
        view._hold = self._allocation.hold() if self._hold is None else self._hold
        view._address = self._address
        view.base = self if self.base is None else self.base
        view.device = self.device
        view.dtype = self.dtype
        return view

    def _device(self) -> Any:
        from aie_tensor.memory.cuda import Device

        return Device.named(self.device)

    def _copy_tensor(self, source: "Tensor", stream: "CudaStream | None") -> None:
        """One of the two is on a GPU."""
        if stream is not None:  # before anything is queued: this refuses released tensors
            source.used_on(stream)
            self.used_on(stream)
        device = (self if source.device == CPU else source)._device()
        _transfer().copy(device, self.address, self._layout, source.address, source._layout, stream)

    def _copy_array(self, array: NDArray[Any], stream: "CudaStream | None") -> None:
        """From the caller's array, which nobody protects from changing: so this waits."""
        array = np.ascontiguousarray(array, dtype=self._numpy_dtype)
        layout = Layout.contiguous(array.shape, self._layout.itemsize)
        if stream is not None:
            self.used_on(stream)
        _transfer().copy(self._device(), self.address, self._layout, array.ctypes.data, layout, stream)
        if stream is not None:
            stream.synchronize()


def _transfer() -> Any:
    from aie_tensor.memory.cuda import transfer  # only tensors on a GPU need it

    return transfer


def _layout(dtype: DType, shape: tuple[int, ...]) -> Layout:
    if not isinstance(dtype, DType):
        raise InvalidInputError(f"dtype must be a DType, not {dtype!r}", param="dtype")
    if dtype.numpy is None:
        raise InvalidInputError(f"NumPy has no {dtype.value}: keep such weights as a Matrix", param="dtype")
    return Layout.contiguous(shape, dtype.block_bytes)


def _array(array: Any) -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise InvalidInputError(f"the source must be a NumPy array or a Tensor, not {type(array).__name__}")
    return array
