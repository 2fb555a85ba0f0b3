"""Element types: how many bytes a run of numbers takes, and whether NumPy can name it.

A plain type stores one number per element. A packed type (F4, F6) stores a few small floats in whole bytes. A block
type stores 32 or 256 numbers together with their shared scale, in the layout of ggml, so that weights of a GGUF file
are used where they lie in the mapped file:

    Q8_0  34 bytes   f16 d | 32 × int8 q                           value = q · d
    Q4_0  18 bytes   f16 d | 16 bytes, two 4-bit q each            value = (q − 8) · d
    Q4_1  20 bytes   f16 d | f16 m | 16 bytes, two q each          value = q · d + m
    Q5_0  22 bytes   f16 d | 32 fifth bits | 16 bytes              value = (q − 16) · d
    Q5_1  24 bytes   f16 d | f16 m | 32 fifth bits | 16 bytes      value = q · d + m

In these, the low nibbles of the 16 bytes are elements 0–15 of the block and the high nibbles elements 16–31. The five
K types have blocks of 256 with scales of scales; `k_blocks.py` draws them. Everything is little-endian.
"""

from enum import Enum
from typing import Any

import numpy as np

from aie_tensor.errors import InvalidInputError

__all__ = ["DType"]


class DType(Enum):
    """One element type. `.value` is its lower-case name, as printed in tables."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F64 = "f64"
    C64 = "c64"  # complex, two F32
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BOOL = "bool"
    F8_E4M3 = "f8_e4m3"  # small_floats.py says which bits mean what
    F8_E5M2 = "f8_e5m2"
    F8_E8M0 = "f8_e8m0"  # powers of two: the scales of MX formats
    F8_E4M3FNUZ = "f8_e4m3fnuz"
    F8_E5M2FNUZ = "f8_e5m2fnuz"
    F6_E2M3 = "f6_e2m3"
    F6_E3M2 = "f6_e3m2"
    F4 = "f4"  # E2M1, the first of two in the low nibble
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q2_K = "q2_k"
    Q3_K = "q3_k"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"

    @property
    def block_size(self) -> int:
        """Elements that share one block: 1 for plain types, 2 and 4 for packed ones, 32 or 256 for quantized ones."""
        return _LAYOUT[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, scales included."""
        return _LAYOUT[self][1]

    @property
    def numpy(self) -> np.dtype[Any] | None:
        """The NumPy type with the same bytes; None where NumPy knows none (BF16, FP8 and smaller, quantized)."""
        return _NUMPY.get(self)

    @property
    def is_quantized(self) -> bool:
        """True when elements come in blocks with a shared scale."""
        return self.block_size >= 32

    def nbytes(self, num_elements: int) -> int:
        """Bytes of `num_elements` contiguous elements. InvalidInputError unless they fill whole blocks."""
        num_blocks, rest = divmod(num_elements, self.block_size)
        if rest or num_elements < 0:
            raise InvalidInputError(
                f"{num_elements} elements do not fill whole {self.value} blocks of {self.block_size}"
            )
        return num_blocks * self.block_bytes

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any]) -> "DType":
        """The DType of a NumPy type. InvalidInputError when there is none (double complex, text, objects)."""
        for member, candidate in _NUMPY.items():
            if candidate == dtype.newbyteorder("<"):
                return member
        raise InvalidInputError(f"arrays of NumPy type {dtype} have no counterpart here")


# (elements per block, bytes per block)
_LAYOUT: dict[DType, tuple[int, int]] = {
    DType.F32: (1, 4), DType.F16: (1, 2), DType.BF16: (1, 2), DType.F64: (1, 8), DType.C64: (1, 8),
    DType.I8: (1, 1), DType.I16: (1, 2), DType.I32: (1, 4), DType.I64: (1, 8),
    DType.U8: (1, 1), DType.U16: (1, 2), DType.U32: (1, 4), DType.U64: (1, 8), DType.BOOL: (1, 1),
    DType.F8_E4M3: (1, 1), DType.F8_E5M2: (1, 1), DType.F8_E8M0: (1, 1),
    DType.F8_E4M3FNUZ: (1, 1), DType.F8_E5M2FNUZ: (1, 1),
    DType.F6_E2M3: (4, 3), DType.F6_E3M2: (4, 3), DType.F4: (2, 1),
    DType.Q8_0: (32, 34), DType.Q4_0: (32, 18), DType.Q4_1: (32, 20), DType.Q5_0: (32, 22), DType.Q5_1: (32, 24),
    DType.Q2_K: (256, 84), DType.Q3_K: (256, 110), DType.Q4_K: (256, 144), DType.Q5_K: (256, 176),
    DType.Q6_K: (256, 210),
}  # fmt: skip

_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype("<f4"), DType.F16: np.dtype("<f2"), DType.F64: np.dtype("<f8"), DType.C64: np.dtype("<c8"),
    DType.I8: np.dtype("i1"), DType.I16: np.dtype("<i2"), DType.I32: np.dtype("<i4"), DType.I64: np.dtype("<i8"),
    DType.U8: np.dtype("u1"), DType.U16: np.dtype("<u2"), DType.U32: np.dtype("<u4"), DType.U64: np.dtype("<u8"),
    DType.BOOL: np.dtype("?"),
}  # fmt: skip
