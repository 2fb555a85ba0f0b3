"""Functions of one element, and the two that turn scores into probabilities.

Each is written so that no input, however large, overflows into a NaN; NaN itself goes through.
"""

import math
from functools import cache

import numpy as np

from aie_tensor.ops.linear import Floats

__all__ = [
    "gelu",
    "gelu_tanh",
    "log_softmax",
    "quick_gelu",
    "relu",
    "sigmoid",
    "silu",
    "softcap",
    "softmax",
    "tanh",
]


def relu(x: Floats) -> Floats:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e⁻ˣ)."""
    with np.errstate(over="ignore"):  # exp(−x) → inf gives the right limit, 0
        result: Floats = np.float32(1) / (np.float32(1) + np.exp(-x))
    return result


def tanh(x: Floats) -> Floats:
    """The hyperbolic tangent."""
    result: Floats = np.tanh(x)
    return result


def silu(x: Floats) -> Floats:
    """x · sigmoid(x), also called swish: Elfwing et al. 2017, arXiv:1702.03118."""
    return x * sigmoid(x)


def quick_gelu(x: Floats) -> Floats:
    """x · sigmoid(1.702 · x), the cheap GELU that CLIP was trained with."""
    return x * sigmoid(np.float32(1.702) * x)


def gelu(x: Floats) -> Floats:
    """x · Φ(x), with Φ the normal distribution's own function: Hendrycks and Gimpel 2016, arXiv:1606.08415."""
    result: Floats = x * np.float32(0.5) * (np.float32(1) + _erf(x * np.float32(np.sqrt(0.5))))
    return result


def gelu_tanh(x: Floats) -> Floats:
    """The same paper's approximation: ½x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))."""
    with np.errstate(over="ignore", invalid="ignore"):
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return (np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))).astype(np.float32, copy=False)


def softcap(x: Floats, cap: float) -> Floats:
    """cap · tanh(x / cap): as x near zero, never beyond ±cap (Gemma 2, arXiv:2408.00118, section 2)."""
    capped: Floats = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


def softmax(x: Floats, axis: int = -1) -> Floats:
    """exp(x) / Σ exp(x), shifted by the maximum so that nothing overflows."""
    exponentials: Floats = np.exp(x - x.max(axis=axis, keepdims=True))
    total: Floats = exponentials.sum(axis=axis, keepdims=True)
    return exponentials / total


def log_softmax(x: Floats, axis: int = -1) -> Floats:
    """log(softmax(x)), computed without taking the logarithm of a number that rounded to zero."""
    shifted = x - x.max(axis=axis, keepdims=True)
    logs: Floats = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return logs


_ERF_STEP = 1 / 256
_ERF_END = 4.0  # beyond it the result differs from ±1 by less than float32 can hold


@cache
def _erf_table() -> tuple[Floats, Floats]:
    """erf and its slope 2/√π · e^(−z²) at the multiples of the step from 0 to the end."""
    points = np.arange(round(_ERF_END / _ERF_STEP) + 1) * _ERF_STEP
    values = np.array([math.erf(point) for point in points], dtype=np.float32)
    return values, (2 / np.sqrt(np.pi) * np.exp(-points * points)).astype(np.float32)


def _erf(x: Floats) -> Floats:
    """The error function, which NumPy lacks, to float32's last digit or two.

    Taylor's series about the nearest z of a table, erf(z + d) = erf(z) + erf'(z) · (d − z·d² + (2z² − 1)·d³/3 − …):
    with |d| ≤ 1/512 the first term left out is below 1e-11.
    """
    values, slopes = _erf_table()
    size = np.minimum(np.abs(x), np.float32(_ERF_END))
    nearest = np.rint(np.fmin(size, np.float32(_ERF_END)) * np.float32(1 / _ERF_STEP))  # fmin: NaN goes on in `size`
    index = nearest.astype(np.int32)
    z = nearest * np.float32(_ERF_STEP)
    d = size - z  # exact: both are multiples of the last digit of `size`
    series = d * (1 - d * (z - d * (2 * z * z - 1) * np.float32(1 / 3)))
    result: Floats = np.copysign(values[index] + slopes[index] * series, x)
    return result
