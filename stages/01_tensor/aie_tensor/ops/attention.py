"""Attention: every query looks at the keys that it may see and mixes their values.

Axes: H query heads, G key/value heads (H is a multiple of G), D head size, Tq/Tk query and key positions of one
sequence.
"""

from collections.abc import Sequence

import numpy as np

from aie_tensor.ops.activations import softcap as capped
from aie_tensor.ops.activations import softmax
from aie_tensor.ops.linear import Floats, Ints

__all__ = ["alibi_slopes", "attention", "bidirectional_attention"]


def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    positions_q: Ints,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Sequence[float] | None = None,
) -> Floats:
    """Causal attention of one sequence: q [Tq, H, D], k and v [Tk, G, D], positions_q [Tq] → [Tq, H, D].

    Key j sits at position j; a query at position p sees the keys j ≤ p, with `window` only the last `window` of them
    (itself included; Mistral 7B, arXiv:2310.06825). With G < H each key head serves H/G query heads (grouped-query
    attention: Ainslie et al. 2023, arXiv:2305.13245). `softcap` bounds the scores (Gemma 2), `alibi_slopes` [H] add
    −slope · distance to them instead of rotating (Press et al. 2021, arXiv:2108.12409).
    softmax(q·kᵀ·scale)·v: Vaswani et al. 2017, arXiv:1706.03762.
    """
    scores = _scores(q, k, scale)  # [G, H/G, Tq, Tk]
    if softcap is not None:
        scores = capped(scores, softcap)
    distance = positions_q[:, None] - np.arange(len(k))  # [Tq, Tk]
    if alibi_slopes is not None:
        slopes = np.asarray(alibi_slopes, dtype=np.float32).reshape(*scores.shape[:2], 1, 1)
        scores = scores - slopes * distance.astype(np.float32)
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return _mix(softmax(np.where(visible, scores, np.float32(-np.inf))), v)


def bidirectional_attention(q: Floats, k: Floats, v: Floats, scale: float) -> Floats:
    """Every position sees every other, as in an encoder: q [T, H, D], k and v [T, G, D] → [T, H, D]."""
    return _mix(softmax(_scores(q, k, scale)), v)


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """2^(−8i/n) for i in 1…n, n a power of two; for other n the paper's code adds every other slope of the next one."""
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2.0 ** (-4 * (i + 1) / whole) for i in range(0, 2 * (num_heads - whole), 2)]
    return tuple(slopes)


def _scores(q: Floats, k: Floats, scale: float) -> Floats:
    """[Tq, H, D], [Tk, G, D] → [G, H/G, Tq, Tk]."""
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    assert num_heads % num_kv_heads == 0, (num_heads, num_kv_heads)
    grouped = q.reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim).transpose(1, 2, 0, 3)
    scores: Floats = grouped @ k.transpose(1, 2, 0)[:, None] * np.float32(scale)
    return scores


def _mix(weights: Floats, v: Floats) -> Floats:
    """[G, H/G, Tq, Tk], [Tk, G, D] → [Tq, H, D]."""
    mixed: Floats = weights @ v.transpose(1, 0, 2)[:, None]  # [G, H/G, Tq, D]
    return mixed.transpose(2, 0, 1, 3).reshape(weights.shape[2], -1, v.shape[-1])
