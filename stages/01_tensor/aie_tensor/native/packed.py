"""A weight matrix in the order in which the kernels read it (src/formats.h draws the layout)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aie_tensor.errors import InvalidInputError
from aie_tensor.native.library import NativeLibrary, pointer
from aie_tensor.native.structs import DOT_FORMATS, FORMATS
from aie_tensor.ops import Activations
from aie_tensor.quant import Matrix

__all__ = ["PackedMatrix", "aligned_zeros"]

CACHE_LINE = 64


def aligned_zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that start at a cache line."""
    raw = np.zeros(nbytes + CACHE_LINE, np.uint8)
    offset = -raw.ctypes.data % CACHE_LINE
    return raw[offset : offset + nbytes]


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """Weights [n, k] in panels of 16 rows; the same values as the `Matrix`, in another order.

    The K types take a little more room than in the file: their scales of scales are repeated.
    """

    format: int  # index into FORMATS, or behind them into DOT_FORMATS
    n: int  # outputs
    k: int  # inputs
    data: npt.NDArray[np.uint8]  # panels, private layout

    @property
    def nbytes(self) -> int:
        """Bytes held, padding to whole panels included."""
        return self.data.nbytes

    @property
    def num_panels(self) -> int:
        """Panels of 16 rows."""
        return -(-self.n // 16)

    @classmethod
    def pack(
        cls,
        lib: NativeLibrary,
        matrix: Matrix,
        *,
        allocate: Callable[[int], npt.NDArray[np.uint8]] = aligned_zeros,
        activations: Activations = "fp32",
    ) -> "PackedMatrix":
        """Repack a 2-D matrix of one of `FORMATS`, or with int8 activations of `DOT_FORMATS`. InvalidInputError for
        other types or ranks.

        allocate: gives so many zeroed bytes at a cache line, whose memory stays the caller's to return.
        """
        formats = FORMATS if activations == "fp32" else DOT_FORMATS
        if matrix.dtype not in formats or len(matrix.shape) != 2 or min(matrix.shape) < 1:
            known = ", ".join(dtype.name for dtype in formats)
            given = f"{matrix.dtype.name} {matrix.shape}"
            rounded = "" if activations == "fp32" else f", with {activations} activations,"
            raise InvalidInputError(f"The native kernels{rounded} multiply by 2-D matrices of {known}, not by {given}.")
        n, k = matrix.shape
        if k % matrix.dtype.block_size:
            size = matrix.dtype.block_size
            raise InvalidInputError(
                f"Rows of {matrix.dtype.name} are whole blocks of {size}, but a row has {k} elements."
            )
        code = formats.index(matrix.dtype) + (len(FORMATS) if activations == "int8" else 0)
        panel_bytes = int(lib.c.aie_panel_bytes(code, k))
        assert matrix.data.nbytes == matrix.dtype.nbytes(n * k), (matrix.data.nbytes, n, k)
        packed = cls(code, n, k, allocate(-(-n // 16) * panel_bytes))
        lib.c.aie_pack(code, n, k, pointer(matrix.data), pointer(packed.data))
        return packed
