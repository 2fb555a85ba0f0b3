"""Floats of eight and four bits: every bit pattern's value, in a table of 256 or 16 entries.

    type          sign exponent mantissa  bias   special
    F8_E4M3        1      4        3        7    no infinity; S.1111.111 is NaN; largest 448
    F8_E5M2        1      5        2       15    as IEEE 754: infinities and NaNs; largest 57344
    F8_E4M3FNUZ    1      4        3        8    0x80 is NaN, so there is one zero; largest 240
    F8_E5M2FNUZ    1      5        2       16    0x80 is NaN, so there is one zero; largest 57344
    F8_E8M0        –      8        –      127    2^(x − 127); 0xFF is NaN; there is no zero
    F4             1      2        1        1    ±{0, ½, 1, 1½, 2, 3, 4, 6}

A table is the plainest correct way: a look-up has no rounding and no branches, and 256 floats are one kilobyte.

Sources: Micikevicius et al. 2022, "FP8 formats for deep learning"; OCP Microscaling (MX) specification 1.0; the FNUZ
variants of Noune et al. 2022.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from aie_tensor.dtypes import DType

__all__ = ["small_float_table"]

# (mantissa bits, bias)
_FIELDS = {
    DType.F8_E4M3: (3, 7),
    DType.F8_E5M2: (2, 15),
    DType.F8_E4M3FNUZ: (3, 8),
    DType.F8_E5M2FNUZ: (2, 16),
    DType.F4: (1, 1),
}


@cache
def small_float_table(dtype: DType) -> NDArray[np.float32]:
    """The value of each bit pattern, float32 [256], or [16] for F4. Exact: every one of them is a float32."""
    if dtype is DType.F8_E8M0:
        table = np.full(256, np.nan, np.float32)
        table[:255] = np.ldexp(np.float64(1), np.arange(255) - 127)
    else:
        table = _signed(dtype)
    table.setflags(write=False)
    return table


def _signed(dtype: DType) -> NDArray[np.float32]:
    mantissa_bits, bias = _FIELDS[dtype]
    half = 8 if dtype is DType.F4 else 128  # patterns per sign
    magnitude = np.arange(half)
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    # Exponent 0 holds the subnormals: no hidden one, and the exponent of 1.
    hidden = np.where(exponent == 0, 0, 1 << mantissa_bits)
    positive = np.ldexp((hidden + mantissa).astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    if dtype is DType.F8_E4M3:
        positive[127] = np.nan
    elif dtype is DType.F8_E5M2:
        positive[124] = np.inf
        positive[125:] = np.nan
    table = np.concatenate([positive, -positive]).astype(np.float32)
    if dtype in {DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ}:
        table[half] = np.nan
    return table
