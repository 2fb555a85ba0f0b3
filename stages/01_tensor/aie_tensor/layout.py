"""Shape, strides, offset: how a run of bytes is read as an array with axes.

Element (i, j, …) lies at byte  offset + i · strides[0] + j · strides[1] + …  of its block. So slicing, transposing and
most reshapes only compute other strides and another offset; no byte moves, and it does not matter on which device the
bytes are. NumPy's `strides` mean the same.

Cost: all of it is arithmetic on a few integers per axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import index as as_int
from types import EllipsisType
from typing import Any

from aie_tensor.errors import InvalidInputError

__all__ = ["MAX_BYTES", "Index", "Layout"]

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]

MAX_BYTES = (1 << 63) - 1  # what a signed 64-bit offset can address


@dataclass(frozen=True, slots=True)
class Layout:
    """`strides` and `offset` in bytes; strides may be negative. Every method gives a new layout of the same bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    offset: int = 0

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], itemsize: int, offset: int = 0) -> "Layout":
        """The last axis densest, no gaps. InvalidInputError for axes that are no counts, or too many bytes."""
        axes = _axes(shape)
        # Beside a zero, the other axes still have to fit: the strides are made of them.
        if prod(max(axis, 1) for axis in axes) * itemsize > MAX_BYTES:
            raise InvalidInputError(f"a shape {axes} of {itemsize}-byte elements overflows 2**63 bytes", param="shape")
        return cls(axes, _dense(axes, itemsize), itemsize, offset)

    @property
    def num_elements(self) -> int:
        """Product of the axes; 1 without axes."""
        return prod(self.shape)

    @property
    def run_length(self) -> int:
        """Elements that lie side by side before the first gap; all of them when the layout is contiguous."""
        run = 1
        for axis, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if axis == 1:
                continue
            if stride != run * self.itemsize:
                break
            run *= axis
        return run

    @property
    def is_contiguous(self) -> bool:
        """True when the elements lie in order without gaps (NumPy's `c_contiguous`)."""
        return self.num_elements in (0, self.run_length)

    def offsets(self, run_length: int) -> Iterator[int]:
        """Where each run of so many elements starts, in bytes from the first element, in order."""
        outer = len(self.shape)
        while outer > 0 and prod(self.shape[outer:]) < run_length:
            outer -= 1
        assert prod(self.shape[outer:]) == run_length, (self.shape, run_length)
        for position in product(*map(range, self.shape[:outer])):
            yield sum(i * stride for i, stride in zip(position, self.strides, strict=False))

    def transpose(self, axes: tuple[int, ...] = ()) -> "Layout":
        """Axis k of the result is axis `axes[k]`; without `axes` the order is reversed. InvalidInputError for what is
        no permutation."""
        rank = len(self.shape)
        order = _integers(axes, "axes") if axes else tuple(reversed(range(rank)))
        order = tuple(axis + rank if axis < 0 else axis for axis in order)
        if sorted(order) != list(range(rank)):
            raise InvalidInputError(f"axes {axes} do not name each of the {rank} axes once", param="axes")
        return Layout(
            tuple(self.shape[k] for k in order), tuple(self.strides[k] for k in order), self.itemsize, self.offset
        )

    def reshape(self, shape: tuple[int, ...]) -> "Layout":
        """The same elements in the same order under other axes, one of them may be −1. InvalidInputError where the
        numbers of elements differ, or where the gaps of this layout would make a copy necessary."""
        wanted = self._with_unknown_axis(_integers(shape, "shape"))
        if self.is_contiguous:
            return Layout.contiguous(wanted, self.itemsize, self.offset)
        # Axes without a gap between them act as one. Each new axis has to come from inside one of those.
        merged: list[tuple[int, int]] = []
        for axis, stride in zip(self.shape, self.strides, strict=True):
            if axis == 1:
                continue
            if merged and merged[-1][1] == axis * stride:
                merged[-1] = (merged[-1][0] * axis, stride)
            else:
                merged.append((axis, stride))
        strides: list[int] = []
        left, step = 1, self.itemsize
        for axis in reversed(wanted):
            if axis != 1 and left == 1:
                left, step = merged.pop()
            if left % axis:
                raise InvalidInputError(f"this view is not contiguous: {shape} would need a copy", param="shape")
            strides.append(step)
            left //= axis
            step *= axis
        return Layout(wanted, tuple(reversed(strides)), self.itemsize, self.offset)

    def pick(self, index: Index) -> "Layout":
        """What integers (which drop their axis) and slices choose. IndexError beyond the end; InvalidInputError for
        other kinds of index, which would need a copy."""
        parts = list(index) if isinstance(index, tuple) else [index]
        ellipses = [at for at, part in enumerate(parts) if part is ...]  # by identity: arrays compare by element
        if len(ellipses) > 1:
            raise InvalidInputError("an index has at most one ellipsis", param="index")
        named = len(parts) - len(ellipses)
        if named > len(self.shape):
            raise IndexError(f"{named} indices for the {len(self.shape)} axes of shape {self.shape}")
        at = ellipses[0] if ellipses else len(parts)
        parts[at : at + 1] = [slice(None)] * (len(self.shape) - named)
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for part, axis, stride in zip(parts, self.shape, self.strides, strict=True):
            if isinstance(part, slice):
                chosen = _range(part, axis)
                shape.append(len(chosen))
                strides.append(stride * chosen.step)
                offset += chosen.start * stride
            else:
                offset += _position(part, axis) * stride
        if 0 in shape:  # no element has an address; keep the offset inside the block
            offset = self.offset
        return Layout(tuple(shape), tuple(strides), self.itemsize, offset)

    def _with_unknown_axis(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """`shape` with −1 worked out."""
        mismatch = InvalidInputError(f"cannot see shape {self.shape} as {shape}", param="shape")
        if shape.count(-1) > 1 or min(shape, default=0) < -1:
            raise mismatch
        if -1 in shape:
            known = prod(axis for axis in shape if axis != -1)
            if known == 0 or self.num_elements % known:
                raise mismatch
            shape = tuple(self.num_elements // known if axis == -1 else axis for axis in shape)
        if prod(shape) != self.num_elements:
            raise mismatch
        return shape


def _dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    for axis in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(axis, 1)
    return tuple(reversed(strides))


def _axes(shape: Any) -> tuple[int, ...]:
    axes = _integers(shape, "shape")
    if min(axes, default=0) < 0:
        raise InvalidInputError(f"a shape has no negative axes: {axes}", param="shape")
    return axes


def _integers(values: Any, param: str) -> tuple[int, ...]:
    try:
        if any(isinstance(value, bool) for value in values):
            raise TypeError
        return tuple(as_int(value) for value in values)
    except TypeError:
        raise InvalidInputError(f"{param} must be a sequence of integers, not {values!r}", param=param) from None


def _range(part: slice, axis: int) -> range:
    try:
        return range(*part.indices(axis))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{part} is no slice of an axis: {error}", param="index") from None


def _position(part: Any, axis: int) -> int:
    if isinstance(part, bool) or not hasattr(part, "__index__"):
        raise InvalidInputError(
            f"a view is picked by integers, slices and an ellipsis, not by {type(part).__name__}", param="index"
        )
    try:
        position = as_int(part)
    except TypeError:  # arrays have __index__, but only those of one integer mean it
        raise InvalidInputError(f"{part!r} is not an integer; picking by arrays would copy", param="index") from None
    if not -axis <= position < axis:
        raise IndexError(f"index {position} is out of bounds for an axis of {axis}")
    return position + axis if position < 0 else position
