"""Element types: how many bytes a run of numbers takes, and whether NumPy can name it.

A plain type stores one number per element. A block type (`Q8_0`, `Q4_0`, `Q4_1`) stores 32 numbers together with their
shared scale, in the layout of ggml, so that weights of a GGUF file are used where they lie in the mapped file:

    Q8_0  34 bytes   f16 d | 32 × int8 q                      value = q · d
    Q4_0  18 bytes   f16 d | 16 bytes, two 4-bit q each       value = (q − 8) · d
    Q4_1  20 bytes   f16 d | f16 m | 16 bytes, two q each     value = q · d + m

In the 4-bit types the low nibbles of the 16 bytes are elements 0–15 of the block and the high nibbles elements 16–31.
Everything is little-endian, as in the files.
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
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    BOOL = "bool"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"

    @property
    def block_size(self) -> int:
        """Elements that share one block: 1 for plain types, 32 for quantized ones."""
        return _LAYOUT[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, scales included."""
        return _LAYOUT[self][1]

    @property
    def numpy(self) -> np.dtype[Any] | None:
        """The NumPy type with the same bytes; None for BF16 and the quantized types, which NumPy does not know."""
        return _NUMPY.get(self)

    @property
    def is_quantized(self) -> bool:
        """True when elements come in blocks with a shared scale."""
        return self.block_size > 1

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
        """The DType of a NumPy type. InvalidInputError when there is none (complex, text, objects)."""
        for member, candidate in _NUMPY.items():
            if candidate == dtype.newbyteorder("<"):
                return member
        raise InvalidInputError(f"arrays of NumPy type {dtype} have no counterpart here")


# (elements per block, bytes per block)
_LAYOUT: dict[DType, tuple[int, int]] = {
    DType.F32: (1, 4), DType.F16: (1, 2), DType.BF16: (1, 2), DType.F64: (1, 8),
    DType.I8: (1, 1), DType.I16: (1, 2), DType.I32: (1, 4), DType.I64: (1, 8), DType.U8: (1, 1), DType.BOOL: (1, 1),
    DType.Q8_0: (32, 34), DType.Q4_0: (32, 18), DType.Q4_1: (32, 20),
}  # fmt: skip

_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype("<f4"), DType.F16: np.dtype("<f2"), DType.F64: np.dtype("<f8"),
    DType.I8: np.dtype("i1"), DType.I16: np.dtype("<i2"), DType.I32: np.dtype("<i4"), DType.I64: np.dtype("<i8"),
    DType.U8: np.dtype("u1"), DType.BOOL: np.dtype("?"),
}  # fmt: skip
