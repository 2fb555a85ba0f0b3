"""Rotary position embedding, and the ways to stretch it over texts longer than those of the training.

A pair of features turns by position · frequency, so that the product of a query and a key depends on their distance
alone. Every way of stretching changes the frequencies, once, at load; the rotation stays the same. YaRN also scales the
result (`attention_factor`).

Axes: T tokens, H heads, D head size, of which the first `2 · len(inv_freq)` features turn.
"""

import math
from collections.abc import Sequence

import numpy as np

from aie_tensor.ops.linear import Floats, Ints

__all__ = ["dynamic_ntk", "inverse_frequencies", "linear_scaling", "llama3_scaling", "rope", "yarn"]


def rope(x: Floats, positions: Ints, inv_freq: Floats, interleaved: bool, attention_factor: float = 1.0) -> Floats:
    """Rotate each pair of features by position · frequency: x [T, H, D], positions [T], inv_freq [≤ D/2] → [T, H, D].

    Which features form pair i of the n that turn: `interleaved` → (2i, 2i+1), as GGUF's Llama weights are laid out;
    otherwise the halves (i, i + n), as Hugging Face's. Features from 2n on stay as they are (partial rotation, as in
    GPT-NeoX and Phi). Su et al. 2021, arXiv:2104.09864, section 3.2.2.
    """
    angles = positions.astype(np.float32)[:, None] * inv_freq  # [T, n]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]  # [T, 1, n]
    if attention_factor != 1.0:
        cos, sin = cos * np.float32(attention_factor), sin * np.float32(attention_factor)
    half = inv_freq.shape[-1]
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    rotated = np.array(x, dtype=np.float32)
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., first] * sin + x[..., second] * cos
    return rotated


def inverse_frequencies(theta: float, rotary_dim: int) -> tuple[float, ...]:
    """theta^(−2i/D) for i in 0…D/2−1: radians that pair i turns per position."""
    return tuple(theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2))


def linear_scaling(inv_freq: Sequence[float], factor: float) -> tuple[float, ...]:
    """Every frequency divided by `factor`: positions squeezed into the range that training saw.

    Position interpolation: Chen et al. 2023, arXiv:2306.15595.
    """
    return tuple(frequency / factor for frequency in inv_freq)


def dynamic_ntk(
    theta: float, rotary_dim: int, factor: float, trained_len: int, seq_len: int | None = None
) -> tuple[float, ...]:
    """The base grows with the length: high frequencies stay, low ones stretch ("NTK-aware", bloc97 2023).

    seq_len: the longest sequence to be served; up to `trained_len` (and by default) nothing changes. The original grows
    the base while a text grows, which would make cached keys disagree with new queries, so here it is fixed at load.
    """
    length = max(seq_len or trained_len, trained_len)
    grown = factor * length / trained_len - (factor - 1)
    return inverse_frequencies(theta * grown ** (rotary_dim / (rotary_dim - 2)), rotary_dim)


def llama3_scaling(
    inv_freq: Sequence[float], *, factor: float, low_freq_factor: float, high_freq_factor: float, trained_len: int
) -> tuple[float, ...]:
    """Llama 3.1's: short waves stay, long ones are divided by `factor`, those between are blended.

    A wave is short if more than `high_freq_factor` of it fit into `trained_len` positions, long below
    `low_freq_factor`. As the model's published reference code computes it.
    """

    def scaled(frequency: float) -> float:
        waves = trained_len * frequency / (2 * math.pi)
        if waves > high_freq_factor:
            return frequency
        if waves < low_freq_factor:
            return frequency / factor
        blend = (waves - low_freq_factor) / (high_freq_factor - low_freq_factor)
        return (1 - blend) * frequency / factor + blend * frequency

    return tuple(map(scaled, inv_freq))


def yarn(
    theta: float,
    rotary_dim: int,
    *,
    factor: float,
    trained_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    truncate: bool = True,
) -> tuple[tuple[float, ...], float]:
    """YaRN: Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4. Gives the frequencies and the attention factor.

    Pairs that turn more than `beta_fast` times within `trained_len` stay, those that turn less than `beta_slow` times
    are interpolated by `factor`, with a ramp over the pairs between. `truncate` rounds the ramp's ends to whole pairs,
    as most models were trained.
    """
    original = inverse_frequencies(theta, rotary_dim)

    def pair_of(turns: float) -> float:
        return rotary_dim * math.log(trained_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = max(high - low, 0.001)
    frequencies = []
    for index, frequency in enumerate(original):
        ramp = min(max((index - low) / width, 0.0), 1.0)  # 0: keep, 1: interpolate
        frequencies.append(frequency * (1 - ramp) + frequency / factor * ramp)
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return tuple(frequencies), attention_factor
