"""Precisions that a model can be loaded and written in, and one matrix into one of them.

    fp32, fp16, bf16   plain numbers
    int8               groups of 32 along a row share a scale: blocks of Q8_0
    int8-64, int8-row  two groups, or the whole row, share one: also blocks of Q8_0, each with the same scale in it
    int4               groups of 32 share a scale and a minimum: blocks of Q4_1

The wider int8 kinds exist to show what a coarser scale costs. They save nothing here: every block still carries its
copy of the scale, so all three take 8.5 bits per weight and run on the same kernel.

What quantizes badly pays least in bytes: the embedding table and the output head. `int4` keeps them in int8, as files
found in the wild do.

Axes: N rows (outputs), K columns (inputs), b blocks of 32 in a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from aie_tensor import DType, InvalidInputError, Matrix, quantize

__all__ = ["PRECISIONS", "Precision", "convert_matrix", "find_precision", "stored_dtype"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_BLOCK = 32
_CHUNK_ELEMENTS = 1 << 20  # expanded to float32 at a time: 4 MiB


@dataclass(frozen=True, slots=True)
class Precision:
    """One choice. `dtype` is how it is stored; `ends` names the precision of embedding table and output head."""

    name: str
    what: str  # for people
    dtype: DType
    blocks_per_scale: int | None = 1  # how many blocks of a row share their scale; None: all
    ends: str = ""  # empty: the same

    @property
    def of_ends(self) -> "Precision":
        """The precision of the embedding table and of the output head."""
        return PRECISIONS[self.ends or self.name]


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        precision.name: precision
        for precision in (
            Precision("fp32", "32-bit floats", DType.F32),
            Precision("fp16", "16-bit floats, 11 bits of them significant", DType.F16),
            Precision("bf16", "16-bit floats with the range of fp32, 8 bits significant", DType.BF16),
            Precision("int8", "8-bit integers, a scale for each 32 of a row", DType.Q8_0),
            Precision("int8-64", "8-bit integers, a scale for each 64 of a row", DType.Q8_0, blocks_per_scale=2),
            Precision("int8-row", "8-bit integers, a scale for each row", DType.Q8_0, blocks_per_scale=None),
            Precision("int4", "4-bit integers, a scale and a minimum for each 32 of a row", DType.Q4_1, ends="int8"),
        )
    }
)


def find_precision(name: str, *, param: str = "precision") -> Precision:
    """InvalidInputError lists the names that exist."""
    if name not in PRECISIONS:
        raise InvalidInputError(f"{param} is {name!r}; choose one of {', '.join(PRECISIONS)}.", param=param)
    return PRECISIONS[name]


def stored_dtype(matrix: Matrix, precision: Precision) -> DType:
    """The type that `convert_matrix` gives: that of the precision, or F16 where a row does not fill its blocks."""
    return DType.F16 if matrix.shape[-1] % precision.dtype.block_size else precision.dtype


def convert_matrix(matrix: Matrix, precision: Precision) -> Matrix:
    """`matrix` [N, K] in `precision`; itself where it is stored so already. A few rows are expanded at a time.

    Rows that do not fill blocks become F16, as `stored_dtype` says beforehand. InvalidInputError for values that the
    precision cannot hold.
    """
    dtype = precision.dtype
    if stored_dtype(matrix, precision) is not dtype:
        return convert_matrix(matrix, PRECISIONS["fp16"])
    if matrix.dtype is dtype and precision.blocks_per_scale == 1:
        return matrix
    num_rows, width = matrix.shape
    stored = matrix.data.reshape(num_rows, matrix.dtype.nbytes(width))
    out = np.empty((num_rows, dtype.nbytes(width)), dtype=np.uint8)
    step = max(1, _CHUNK_ELEMENTS // max(1, width))
    for begin in range(0, num_rows, step):
        part = stored[begin : begin + step]
        values = Matrix(matrix.dtype, (len(part), width), part.reshape(-1)).dequantize()
        out[begin : begin + step] = _encode(values, precision).reshape(len(part), -1)
    return Matrix(dtype, matrix.shape, out.reshape(-1))


def _encode(values: Floats, precision: Precision) -> Bytes:
    """values [n, K] → bytes of the rows."""
    if precision.blocks_per_scale != 1:
        return _encode_shared(values, precision.blocks_per_scale)
    encoded = quantize(values, precision.dtype)
    if precision.dtype is DType.F16:
        largest = np.abs(values).max(initial=0)
        if 65520 <= largest < np.inf:  # would be rounded to infinity
            raise InvalidInputError(f"fp16 ends at 65504, but a weight is {largest:g}; choose bf16.", param="precision")
    return encoded.data


def _encode_shared(values: Floats, blocks_per_scale: int | None) -> Bytes:
    """Blocks of Q8_0 whose scale is the largest that any block of its run needs: values [n, K] → bytes.

    value = q · d,  d = max |value| of the run / 127,  q from −127 to 127. Levels are those of the scale as it is
    stored, in half precision.
    """
    if not np.isfinite(values).all():
        raise InvalidInputError("cannot quantize to int8: the array holds NaN or infinity")
    blocks = values.reshape(len(values), -1, _BLOCK)  # [n, b, 32]
    num_blocks = blocks.shape[1]
    starts = np.arange(0, num_blocks, blocks_per_scale or num_blocks)  # a last run may be shorter
    largest = np.maximum.reduceat(np.abs(blocks).max(axis=2), starts, axis=1)  # [n, runs]
    with np.errstate(over="ignore"):
        scales = (largest / np.float32(127)).astype("<f2")
    if not np.isfinite(scales).all():
        raise InvalidInputError("cannot quantize to int8: a value is so large that its 16-bit scale overflows")
    scales = np.repeat(scales, np.diff(starts, append=num_blocks), axis=1)[..., None]  # [n, b, 1]
    divisor = np.where(scales == 0, np.inf, scales).astype(np.float32)  # too small for a scale: all zero
    levels = np.rint(blocks / divisor).clip(-127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), levels.view(np.uint8)], axis=2).reshape(-1)
