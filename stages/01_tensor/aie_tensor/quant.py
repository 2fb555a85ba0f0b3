"""Weights as they lie in the file: `Matrix`, and the way into and out of quantized blocks.

A quantized weight is never expanded as a whole on the fast path: the kernels read its blocks, and `rows` expands only
the rows asked for (an embedding look-up). `dequantize` is the reference: float32 arithmetic in the written order, so
that it gives bit for bit what ggml's own reference code gives.

Axes: N rows (outputs), K columns (inputs, contiguous), b blocks.

Source of the formulas: ggml's `quantize_row_*_ref`, as documented in the GGUF specification and checked in
`tests/01_tensor/test_quant.py` against the `gguf` package.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aie_tensor.decoding import decode
from aie_tensor.dtypes import DType
from aie_tensor.errors import InvalidInputError

__all__ = ["Matrix", "quantize"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight of any rank: element type, shape, raw bytes. Immutable; `data` may be a read-only view of a mapped file.

    InvalidInputError when `data` does not hold exactly the bytes that `dtype` and `shape` need.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: Bytes  # 1-D, contiguous

    def __post_init__(self) -> None:
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or not self.data.flags.c_contiguous:
            raise InvalidInputError("a matrix needs its bytes as one contiguous 1-D uint8 array")
        if self.shape:
            self.dtype.nbytes(self.shape[-1])  # every row must fill whole blocks
        needed = self.dtype.nbytes(prod(self.shape))
        if needed != self.data.nbytes:
            raise InvalidInputError(
                f"shape {self.shape} of {self.dtype.value} needs {needed} bytes, but there are {self.data.nbytes}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes as stored, scales included."""
        return self.data.nbytes

    @classmethod
    def from_array(cls, array: NDArray[Any], dtype: DType | None = None) -> "Matrix":
        """Wrap an array (no copy where it is contiguous), or convert it when `dtype` differs from its own."""
        own = DType.from_numpy(array.dtype)
        if dtype is not None and dtype is not own:
            return quantize(array, dtype)
        contiguous = np.ascontiguousarray(array, dtype=own.numpy)
        return cls(own, array.shape, contiguous.reshape(-1).view(np.uint8))

    def array(self) -> NDArray[Any]:
        """The elements in their own type, shape `self.shape`: a view, nothing is copied.

        InvalidInputError for types that NumPy does not know; `dequantize` reads those.
        """
        if self.dtype.numpy is None:
            raise InvalidInputError(f"NumPy has no type {self.dtype.value}; `dequantize` gives its elements as float32")
        return self.data.view(self.dtype.numpy).reshape(self.shape)

    def dequantize(self) -> Floats:
        """All elements as float32, shape `self.shape`; always a fresh array. Errors as `decoding.decode`."""
        return decode(self.dtype, self.data).reshape(self.shape)

    def rows(self, indices: NDArray[np.integer[Any]] | Sequence[int]) -> Floats:
        """Rows `indices` [R] of a 2-D matrix [N, K] as float32 [R, K]; only those rows are expanded."""
        assert len(self.shape) == 2, self.shape
        num_rows, width = self.shape
        picked = np.asarray(indices, dtype=np.int64)
        if picked.size and (picked.min() < 0 or picked.max() >= num_rows):
            raise InvalidInputError(f"row indices must lie in 0…{num_rows - 1}: {picked.min()}…{picked.max()} given")
        raw = self.data.reshape(num_rows, self.dtype.nbytes(width))[picked]
        return decode(self.dtype, raw.reshape(-1)).reshape(len(picked), width)


def quantize(array: NDArray[Any], dtype: DType) -> Matrix:
    """Convert `array` [..., K] to F32, F16, BF16, Q8_0, Q4_0 or Q4_1, rounding as ggml does.

    InvalidInputError for another type, for rows that do not fill whole blocks, and for values that no block can hold
    (not finite, or so large that the 16-bit scale overflows).
    """
    encode = _ENCODERS.get(dtype)
    if encode is None:
        choices = ", ".join(known.value for known in _ENCODERS)
        raise InvalidInputError(f"cannot quantize to {dtype.value}; choose one of {choices}")
    values = np.ascontiguousarray(array, dtype=np.float32)
    if values.shape:
        dtype.nbytes(values.shape[-1])  # every row must fill whole blocks
    if dtype.is_quantized and not np.isfinite(values).all():
        raise InvalidInputError(f"cannot quantize to {dtype.value}: the array holds NaN or infinity")
    return Matrix(dtype, values.shape, encode(values.reshape(-1)))


def _encode_f16(values: Floats) -> Bytes:
    with np.errstate(over="ignore"):  # beyond 65504 becomes infinity, as IEEE 754 rounds
        return values.astype("<f2").view(np.uint8)


def _encode_bf16(values: Floats) -> Bytes:
    """Round to nearest, ties to even, on the integer bits; a NaN is kept a NaN by setting its quiet bit."""
    bits = values.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 64
    return np.where(np.isnan(values), quiet_nan, rounded).astype("<u2").view(np.uint8)


def _encode_q8_0(values: Floats) -> Bytes:
    blocks = values.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)  # [b, 1]
    scaled = blocks * _reciprocal(scale)
    # C's roundf: halves go away from zero, where NumPy's `round` would send them to even.
    whole = np.trunc(scaled)
    levels = whole + np.where(np.abs(scaled - whole) >= 0.5, np.sign(scaled), 0)
    return _join(_half(scale), levels.astype(np.int8).view(np.uint8))


def _encode_q4_0(values: Floats) -> Bytes:
    blocks = values.reshape(-1, 32)
    # The element of largest magnitude lands exactly on −8 · d, so that all sixteen levels are in use.
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scale = extreme / np.float32(-8)
    return _join(_half(scale), _pack_nibbles(_levels(blocks, scale, 8.5)))


def _encode_q4_1(values: Floats) -> Bytes:
    blocks = values.reshape(-1, 32)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scale = (high - low) / np.float32(15)
    return _join(_half(scale), _half(low), _pack_nibbles(_levels(blocks - low, scale, 0.5)))


def _levels(blocks: Floats, scale: Floats, offset: float) -> Bytes:
    """Levels 0–15: x · (1/d) + offset in float32, cut to an integer."""
    scaled = blocks * _reciprocal(scale) + np.float32(offset)
    levels: Bytes = np.trunc(scaled).clip(0, 15).astype(np.uint8)
    return levels


def _pack_nibbles(levels: Bytes) -> Bytes:
    """[b, 32] levels → [b, 16] bytes."""
    return np.bitwise_or(levels[:, :16], np.left_shift(levels[:, 16:], np.uint8(4)))


def _reciprocal(scale: Floats) -> Floats:
    """1 / scale, and 0 for the scale of an all-zero (or constant) block, or one so small that 1 / scale overflows: its
    half-precision rounding is 0, so every level means the same."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0)).astype(np.float32)


def _half(scale: Floats) -> Bytes:
    """float32 [b, 1] → the two bytes of its half-precision rounding [b, 2]."""
    with np.errstate(over="ignore"):
        half = scale.astype("<f2")
    if not np.isfinite(half).all():
        raise InvalidInputError("cannot quantize: a value is so large that the block's 16-bit scale overflows")
    raw: Bytes = half.view(np.uint8)
    return raw


def _join(*parts: Bytes) -> Bytes:
    """Concatenate the parts of each block [b, ·] and flatten."""
    return np.concatenate(parts, axis=1).reshape(-1)


_ENCODERS = {
    DType.F32: lambda values: values.astype("<f4").view(np.uint8),
    DType.F16: _encode_f16,
    DType.BF16: _encode_bf16,
    DType.Q8_0: _encode_q8_0,
    DType.Q4_0: _encode_q4_0,
    DType.Q4_1: _encode_q4_1,
}
