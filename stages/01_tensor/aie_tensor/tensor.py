"""`Tensor`: a shape and an element type on a block of the pool.

A tensor owns the allocation's references: `release` when done, `retain` for a second owner. What `reshape` and slicing
give is a view: it copies nothing, owns no reference, and keeps the bytes alive by existing, also after the tensor it
came from is released; the block then returns to the pool when the last view is gone (see `memory/allocation.py`).
"""

from math import prod
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aie_tensor.dtypes import DType
from aie_tensor.errors import InvalidInputError
from aie_tensor.memory import Allocation, MemoryPool

__all__ = ["Tensor"]

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]


class Tensor:
    """An array whose memory comes from a pool. Only types that NumPy knows; quantized weights are a `Matrix`."""

    __slots__ = ("_allocation", "_view", "dtype", "shape")

    def __init__(
        self, allocation: Allocation, dtype: DType, shape: tuple[int, ...], view: NDArray[Any] | None = None
    ) -> None:
        """Take over one reference of `allocation`, or with `view` none."""
        self._allocation = allocation
        self._view = view
        self.dtype = dtype
        self.shape = shape

    @classmethod
    def empty(cls, pool: MemoryPool, shape: tuple[int, ...], dtype: DType = DType.F32, *, owner: str = "") -> "Tensor":
        """A tensor of undefined content. OutOfMemoryError; InvalidInputError for BF16, quantized types, bad shapes."""
        if dtype.numpy is None:
            raise InvalidInputError(f"NumPy has no {dtype.value}: keep such weights as a Matrix", param="dtype")
        if min(shape, default=0) < 0:
            raise InvalidInputError(f"a shape has no negative axes: {shape}", param="shape")
        return cls(pool.allocate(dtype.nbytes(prod(shape)), owner=owner), dtype, shape)

    @classmethod
    def zeros(cls, pool: MemoryPool, shape: tuple[int, ...], dtype: DType = DType.F32, *, owner: str = "") -> "Tensor":
        """As `empty`, filled with zero."""
        tensor = cls.empty(pool, shape, dtype, owner=owner)
        tensor.numpy()[...] = 0
        return tensor

    @classmethod
    def from_array(cls, pool: MemoryPool, array: NDArray[Any], *, owner: str = "") -> "Tensor":
        """A copy of `array` in the pool."""
        tensor = cls.empty(pool, array.shape, DType.from_numpy(array.dtype), owner=owner)
        tensor.numpy()[...] = array
        return tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without the pool's rounding."""
        return self.dtype.nbytes(prod(self.shape))

    @property
    def is_view(self) -> bool:
        """True for what `reshape` and slicing gave."""
        return self._view is not None

    def numpy(self) -> NDArray[Any]:
        """The elements as an array that shares the memory. UseAfterFreeError after the last release (not for views)."""
        if self._view is not None:
            return self._view
        assert self.dtype.numpy is not None, self.dtype  # `empty` refuses such types
        return self._allocation.array(self.dtype.numpy, self.shape)

    def reshape(self, *shape: int) -> "Tensor":
        """The same elements in another shape, one axis may be −1. InvalidInputError where that would need a copy."""
        source = self.numpy()
        try:
            reshaped = source.reshape(shape)
        except ValueError:
            raise InvalidInputError(f"cannot see shape {self.shape} as {shape}", param="shape") from None
        if source.size and not np.may_share_memory(source, reshaped):
            raise InvalidInputError(f"this view is not contiguous: {shape} would need a copy", param="shape")
        return Tensor(self._allocation, self.dtype, reshaped.shape, reshaped)

    def __getitem__(self, index: Index) -> "Tensor":
        """A view of the part that integers and slices pick. IndexError as NumPy raises it."""
        picked = index if isinstance(index, tuple) else (index,)
        # With an ellipsis NumPy gives a view even where the integers pick a single element.
        view = self.numpy()[picked if ... in picked else (*picked, ...)]
        return Tensor(self._allocation, self.dtype, view.shape, view)

    def retain(self) -> "Tensor":
        """Add an owner; returns the same tensor. For views not needed, and not allowed after the last release."""
        self._allocation.retain()
        return self

    def release(self) -> None:
        """Drop an owner. DoubleFreeError when none is left."""
        self._allocation.release()

    def __repr__(self) -> str:
        return f"Tensor({self.dtype.value}, {self.shape}{', view' if self.is_view else ''})"
