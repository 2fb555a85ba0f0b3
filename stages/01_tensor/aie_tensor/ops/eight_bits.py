"""Activations in eight bits: what a product sees of x when it multiplies integers.

Each block of 32 neighbours of a row has a scale of its own, the largest magnitude over 127, so that one outlier spoils
31 others and no more. The weights keep the bits of their blocks.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

__all__ = ["ACTIVATIONS", "Activations", "round_activations"]

Activations = Literal["fp32", "int8"]
ACTIVATIONS: tuple[Activations, ...] = get_args(Activations)

F32Array = npt.NDArray[np.float32]

_BLOCK = 32


def round_activations(x: F32Array) -> F32Array:
    """x [..., K] as the int8 kernels see it: scale * q with whole q from -127 to 127; K is a multiple of 32."""
    assert x.dtype == np.float32 and x.shape[-1] % _BLOCK == 0, (x.dtype, x.shape)
    blocks = x.reshape(*x.shape[:-1], -1, _BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    rounded: F32Array = np.rint(blocks * inverse) * (largest / np.float32(127))
    return rounded.reshape(x.shape)
