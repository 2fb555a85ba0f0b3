"""The reference operators: plain NumPy in float32, the oracle that every fast kernel is tested against.

They are written to be read beside the formula, not to be fast. Activations are packed: the tokens of one or many
sequences lie one after another, so most operators see only T rows and need not know where a sequence ends.

Axes: T tokens, C hidden, K/N input/output width of a linear layer, H query heads, G key/value heads (H is a multiple
of G), D head size, V vocabulary, Tq/Tk query and key positions of one sequence.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aie_tensor.quant import Matrix

__all__ = ["attention", "embedding", "linear", "log_softmax", "rms_norm", "rope", "silu", "softmax"]

Floats = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]


def embedding(ids: Ints, table: Matrix) -> Floats:
    """Rows `ids` [T] of `table` [V, C] → [T, C]. InvalidInputError for an id outside 0…V−1."""
    return table.rows(ids)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x [T, C] / √(mean(x²) + eps) · weight [C] → [T, C].

    Root mean square normalisation: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
    """
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)  # [T, 1]
    return (x / np.sqrt(mean_square + np.float32(eps)) * weight).astype(np.float32, copy=False)


def linear(x: Floats, w: Floats, bias: Floats | None = None) -> Floats:
    """x [T, K] · w [N, K]ᵀ + bias [N] → [T, N]. A row of `w` holds the weights of one output, as files store them."""
    product: Floats = x @ w.T
    return product if bias is None else product + bias


def rope(x: Floats, positions: Ints, inv_freq: Floats, interleaved: bool) -> Floats:
    """Rotate each pair of features by position · frequency: x [T, H, D], positions [T], inv_freq [D/2] → [T, H, D].

    Which features form pair i: `interleaved` → (2i, 2i+1), as GGUF's Llama weights are laid out; otherwise the halves
    (i, i + D/2), as Hugging Face's. Su et al. 2021, arXiv:2104.09864, section 3.2.2.
    """
    angles = positions.astype(np.float32)[:, None] * inv_freq  # [T, D/2]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]  # [T, 1, D/2]
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    rotated = np.empty_like(x, dtype=np.float32)
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., first] * sin + x[..., second] * cos
    return rotated


def attention(q: Floats, k: Floats, v: Floats, positions_q: Ints, scale: float) -> Floats:
    """Causal attention of one sequence: q [Tq, H, D], k and v [Tk, G, D], positions_q [Tq] → [Tq, H, D].

    Key j sits at position j; a query at position p sees the keys j ≤ p. With G < H each key head serves H/G query
    heads (grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245); softmax(q·kᵀ·scale)·v: Vaswani et al. 2017.
    """
    num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    assert num_heads % num_kv_heads == 0, (num_heads, num_kv_heads)
    grouped = q.reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim).transpose(1, 2, 0, 3)
    scores = grouped @ k.transpose(1, 2, 0)[:, None] * np.float32(scale)  # [G, H/G, Tq, Tk]
    visible = np.arange(num_keys) <= positions_q[:, None]  # [Tq, Tk]
    weights = softmax(np.where(visible, scores, np.float32(-np.inf)))
    mixed = weights @ v.transpose(1, 0, 2)[:, None]  # [G, H/G, Tq, D]
    return mixed.transpose(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim)


def silu(x: Floats) -> Floats:
    """x · sigmoid(x), element by element, without overflow for large negative x."""
    with np.errstate(over="ignore"):  # exp(−x) → inf gives the right limit, 0
        sigmoid = np.float32(1) / (np.float32(1) + np.exp(-x))
    return x * sigmoid


def softmax(x: Floats) -> Floats:
    """exp(x) / Σ exp(x) over the last axis, shifted by the maximum so that nothing overflows."""
    exponentials: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Floats = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / total


def log_softmax(x: Floats) -> Floats:
    """log(softmax(x)) over the last axis, computed without taking the logarithm of a number that rounded to zero."""
    shifted = x - x.max(axis=-1, keepdims=True)
    logs: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs
