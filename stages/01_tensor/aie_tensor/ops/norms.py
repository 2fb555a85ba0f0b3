"""Normalisations: the same numbers on another scale, learned or not.

Axes: T tokens, C hidden or channels, H heads, D head size, B images.
"""

import numpy as np

from aie_tensor.ops.linear import Floats

__all__ = ["batch_norm", "group_norm", "l2_normalize", "layer_norm", "rms_norm"]


def rms_norm(x: Floats, weight: Floats, eps: float, *, offset: float = 0.0, num_heads: int = 1) -> Floats:
    """x [T, C] / √(mean(x²) + eps) · (weight + offset) → [T, C].

    Root mean square normalisation: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. Gemma stores weight − 1, so
    its `offset` is 1. With `num_heads` each head of C / num_heads features is normalised by itself, all by the same
    weight [D], as Qwen3 does with queries and keys.
    """
    heads = x.reshape(len(x), num_heads, -1) if num_heads > 1 else x
    mean_square = np.mean(np.square(heads), axis=-1, keepdims=True, dtype=np.float32)
    scale = weight + np.float32(offset) if offset else weight
    normed = (heads / np.sqrt(mean_square + np.float32(eps)) * scale).astype(np.float32, copy=False)
    return normed.reshape(x.shape)


def layer_norm(x: Floats, weight: Floats, bias: Floats | None, eps: float) -> Floats:
    """(x − mean) / √(variance + eps) · weight + bias over the last axis: Ba, Kiros and Hinton 2016, arXiv:1607.06450.

    The variance is that of the population (divided by C), and the mean is taken out before squaring: the shorter
    E[x²] − E[x]² loses all its digits where the mean is large.
    """
    centred = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centred), axis=-1, keepdims=True, dtype=np.float32)
    normed = (centred / np.sqrt(variance + np.float32(eps)) * weight).astype(np.float32, copy=False)
    return normed if bias is None else normed + bias


def batch_norm(x: Floats, weight: Floats, bias: Floats, mean: Floats, variance: Floats, eps: float) -> Floats:
    """x [B, C, …] with the statistics [C] that training left behind: Ioffe and Szegedy 2015, arXiv:1502.03167.

    At inference it is one multiplication and one addition per channel, so a pass can fold it into the convolution.
    """
    scale = weight / np.sqrt(variance + np.float32(eps))
    shift = bias - mean * scale
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    scaled: Floats = x * scale.reshape(per_channel) + shift.reshape(per_channel)
    return scaled


def group_norm(x: Floats, groups: int, weight: Floats, bias: Floats, eps: float) -> Floats:
    """x [B, C, …]: each image's channels in `groups` equal groups, each normalised over all its elements.

    Wu and He 2018, arXiv:1803.08494. `weight` and `bias` are [C].
    """
    grouped = x.reshape(len(x), groups, -1)
    centred = grouped - grouped.mean(axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centred), axis=-1, keepdims=True, dtype=np.float32)
    normed = (centred / np.sqrt(variance + np.float32(eps))).reshape(x.shape)
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    scaled: Floats = normed * weight.reshape(per_channel) + bias.reshape(per_channel)
    return scaled


def l2_normalize(x: Floats) -> Floats:
    """x / ‖x‖ over the last axis; a row of zeros stays zero."""
    length = np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True, dtype=np.float32))
    return (x / np.maximum(length, np.float32(1e-12))).astype(np.float32, copy=False)
