"""Weights that a name and a shape determine, so that a reference output can be kept without the weights behind it.

Needs NumPy alone: `make_golden.py` puts these numbers into a model of the reference library, and the tests put them
into ours.
"""

import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["made_up"]


def made_up(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Numbers in the range that a trained model has: norms around 1, variances positive, matrices that keep the scale
    of what they are given."""
    random = np.random.Generator(np.random.PCG64([7, zlib.crc32(name.encode())]))
    values = random.standard_normal(shape)
    if name.endswith("running_var"):
        scaled = 0.5 + np.abs(values)
    elif len(shape) <= 1:
        is_norm = name.endswith("weight")
        scaled = 1 + 0.1 * values if is_norm else 0.1 * values
    else:
        scaled = values * 1.5 / np.sqrt(np.prod(shape[1:]))
    return scaled.astype(np.float32)
