"""Operators on images, signals and plain vectors, as entries of a plan.

Values lie as [item][channel][height][width]; an operator sees one item as one row of `width` floats, and a shape here
is that of one item, without the axis of the batch.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from aie_tensor.native.appending import Appender, Buffer, F32Array, Rows, in_out
from aie_tensor.native.packed import PackedMatrix
from aie_tensor.native.structs import FORMATS, MAX_DIMS, REDUCE_KINDS, StripC, WalkC, WindowC

__all__ = ["DenseOperators", "Windows"]

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """What convolution and pooling need to know: one item in [C, H, W] and out [O, H', W'], and the window."""

    shape: tuple[int, int, int]
    out_shape: tuple[int, int, int]
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    count_padding: bool = True

    def structure(self) -> WindowC:
        """For C."""
        pairs = ((ctypes.c_int32 * 2)(*pair) for pair in (self.kernel, self.stride, self.padding, self.dilation))
        return WindowC(*self.shape, *self.out_shape, self.groups, int(self.count_padding), *pairs)


@dataclass
class DenseOperators(Appender):
    """No operator here may write over its own input."""

    def conv(
        self, x: Buffer, kernels: Sequence[PackedMatrix], bias: F32Array | None, out: Buffer, rows: Rows,
        windows: Windows,
    ) -> None:  # fmt: skip
        """kernels: float32 [O/g, C/g · kh · kw], one for each group."""
        channels, outputs = windows.shape[0], windows.out_shape[0]
        self._check_windows(x, out, windows)
        assert len(kernels) == windows.groups and all(FORMATS[k.format].value == "f32" for k in kernels), kernels
        assert all(k.n * windows.groups == outputs for k in kernels) and channels % windows.groups == 0, windows
        mats = self._packed(kernels, channels // windows.groups * prod(windows.kernel))
        address = 0 if bias is None else self._vector(bias, outputs)
        self._append(
            "conv", rows, mats=mats, num_mats=len(kernels), bias=address, shape=self._shape(windows.structure()),
            **in_out(x, out),
        )  # fmt: skip

    def pool(self, kind: Literal["max", "avg"], x: Buffer, out: Buffer, rows: Rows, windows: Windows) -> None:
        """The largest or the mean of each window."""
        assert windows.shape[0] == windows.out_shape[0], windows
        self._check_windows(x, out, windows)
        self._append(f"{kind}_pool", rows, shape=self._shape(windows.structure()), **in_out(x, out))

    def channels(self, x: Buffer, weight: F32Array, bias: F32Array, out: Buffer, rows: Rows) -> None:
        """x [C, ...] · weight [C] + bias [C]."""
        assert x.width == out.width and x.width % len(weight) == 0, (x, out, weight.shape)
        addresses = {"weight": self._vector(weight, len(weight)), "bias": self._vector(bias, len(weight))}
        self._append("channels", rows, num_heads=len(weight), **addresses, **in_out(x, out))

    def group_norm(
        self, x: Buffer, weight: F32Array, bias: F32Array, eps: float, out: Buffer, rows: Rows, *, groups: int
    ) -> None:
        """x [C, ...], each of `groups` equal groups of channels normalised by itself, · weight [C] + bias [C]."""
        assert x.width == out.width and x.width % len(weight) == 0 and len(weight) % groups == 0, (x, out, groups)
        addresses = {"weight": self._vector(weight, len(weight)), "bias": self._vector(bias, len(weight))}
        self._append(
            "group_norm", rows, num_heads=groups, num_kv_heads=len(weight) // groups, eps=eps, **addresses,
            **in_out(x, out),
        )  # fmt: skip

    def copy(
        self, x: Buffer, out: Buffer, rows: Rows, *, sizes: Sequence[int], in_strides: Sequence[int],
        out_strides: Sequence[int], in_offset: int = 0, out_offset: int = 0,
    ) -> None:  # fmt: skip
        """out[out_offset + i·out_strides] = x[in_offset + i·in_strides] for every index i below `sizes`."""
        for buffer, strides, offset in ((x, in_strides, in_offset), (out, out_strides, out_offset)):
            last = offset + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
            assert offset >= 0 and min(strides) >= 0 and last < buffer.width, (buffer, sizes, strides, offset)
        self._append(
            "copy", rows, shape=self._shape(_walk(sizes, in_strides, out_strides, in_offset, out_offset)),
            **in_out(x, out),
        )  # fmt: skip

    def reduce(
        self, kind: Literal["mean", "sum", "max"], x: Buffer, out: Buffer, rows: Rows, *,
        kept: Sequence[Pair], reduced: Sequence[Pair],
    ) -> None:  # fmt: skip
        """Over the reduced axes, for each position of the kept ones; an axis is (size, stride) in an item of x."""
        axes = [*kept, *reduced]
        assert sum((n - 1) * stride for n, stride in axes) < x.width and prod(n for n, _ in kept) == out.width, axes
        walk = _walk([n for n, _ in axes], [stride for _, stride in axes], [0] * len(axes))
        walk.num_inner = len(reduced)
        self._append("reduce", rows, index=REDUCE_KINDS.index(kind), shape=self._shape(walk), **in_out(x, out))

    def softmax(
        self, x: Buffer, out: Buffer, rows: Rows, *, length: int, inner: int = 1, logarithm: bool = False
    ) -> None:
        """Along an axis of `length`, whose neighbours lie `inner` apart."""
        assert x.width == out.width and x.width % (length * inner) == 0, (x, out, length, inner)
        strip = StripC(x.width // (length * inner), length, inner, 0)
        self._append("log_softmax" if logarithm else "softmax", rows, shape=self._shape(strip), **in_out(x, out))

    def top_k(self, x: Buffer, out: Buffer, rows: Rows, *, length: int, k: int, indices: bool) -> None:
        """The k largest of each run of `length`, or as int32 bits where they were."""
        outer = x.width // length
        assert x.width == outer * length and out.width == outer * k and 1 <= k <= length, (x, out, length, k)
        strip = self._shape(StripC(outer, length, 1, k))
        self._append("top_k", rows, index=int(indices), shape=strip, **in_out(x, out))

    def _check_windows(self, x: Buffer, out: Buffer, windows: Windows) -> None:
        assert x.width == prod(windows.shape) and out.width == prod(windows.out_shape), (x, out, windows)
        assert x.address != out.address and min(windows.stride + windows.dilation + windows.kernel) >= 1, windows

    def _shape(self, structure: ctypes.Structure) -> int:
        self._alive.append(structure)
        return ctypes.addressof(structure)


def _walk(
    sizes: Sequence[int], in_strides: Sequence[int], out_strides: Sequence[int], in_offset: int = 0, out_offset: int = 0
) -> WalkC:
    assert 1 <= len(sizes) <= MAX_DIMS and min(sizes) >= 1, sizes
    arrays = ((ctypes.c_int32 * MAX_DIMS)(*values) for values in (sizes, in_strides, out_strides))
    return WalkC(len(sizes), in_offset, out_offset, 0, *arrays)
