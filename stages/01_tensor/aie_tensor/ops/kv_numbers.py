"""Keys and values in fewer bytes: how they are rounded when they are stored, and what is read back.

int8 is symmetric, with one scale for each vector (a token's key or value of one head): its largest magnitude becomes
127. So a token's numbers depend on no other token, and stay the same in whatever company it is computed.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["KV_DTYPES", "KVDtype", "read_kv", "round_kv"]

Floats = NDArray[np.float32]
KVDtype = Literal["fp32", "fp16", "int8"]
KV_DTYPES: dict[KVDtype, DTypeLike] = dict(zip(get_args(KVDtype), (np.float32, np.float16, np.int8), strict=True))

_HALF_MAX = np.float32(65504)
_LEVELS = np.float32(127)


def round_kv(x: Floats, dtype: KVDtype) -> tuple[NDArray[Any], Floats | None]:
    """Vectors x [..., D] → as they are stored [..., D], and their scales [...] where `dtype` is int8.

    What is too large for fp16 becomes its largest number. A vector that holds an infinity or NaN gets the scale NaN in
    int8, so that it is not lost.
    """
    if dtype == "fp32":
        return x, None
    if dtype == "fp16":
        return np.clip(x, -_HALF_MAX, _HALF_MAX).astype(np.float16), None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        largest = np.abs(x).max(axis=-1)
        largest = np.where(np.isfinite(largest), largest, np.float32(np.nan))
        inverse = _LEVELS / largest
        usable = np.isfinite(inverse)  # else zeros, or so small that they are as good as zero, or NaN
        levels = np.where(usable[..., None], np.rint(x * np.where(usable, inverse, 0)[..., None]), 0)
    scales = np.where(usable | np.isnan(largest), largest / _LEVELS, np.float32(0))
    return levels.astype(np.int8), scales.astype(np.float32)


def read_kv(stored: NDArray[Any], scales: Floats | None) -> Floats:
    """The float32 vectors [..., D] that `stored` stands for."""
    values: Floats = stored.astype(np.float32, copy=False)
    return values if scales is None else values * scales[..., None]
