"""Rotary scaling and the variants of attention against their formulas."""

import math

import numpy as np
import pytest

from aie_tensor import ops


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def test_partial_rotation_leaves_the_rest_alone() -> None:
    x, inv_freq = floats(3, 2, 8), np.float32([1.0, 0.1])
    positions = np.array([0, 5, 9])
    turned = ops.rope(x, positions, inv_freq, interleaved=False)
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(turned[..., :4], ops.rope(x[..., :4], positions, inv_freq, interleaved=False))
    doubled = ops.rope(x[..., :4], positions, inv_freq, interleaved=False, attention_factor=2.0)
    np.testing.assert_allclose(doubled, 2 * turned[..., :4], rtol=1e-6)


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    base = ops.inverse_frequencies(500_000.0, 128)
    scaled = ops.llama3_scaling(base, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, trained_len=8192)
    for before, after in zip(base, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192:
            assert after == before / 8
        else:
            assert before / 8 < after < before


def test_yarn_blends_between_its_ends() -> None:
    base = ops.inverse_frequencies(10_000.0, 128)
    scaled, factor = ops.yarn(10_000.0, 128, factor=4.0, trained_len=4096)
    assert scaled[0] == base[0] and scaled[-1] == base[-1] / 4
    ratios = [after / before for before, after in zip(base, scaled, strict=True)]
    assert ratios == sorted(ratios, reverse=True) and len(set(ratios)) > 20
    assert factor == pytest.approx(1.138629436111989)  # 0.1 · ln 4 + 1
    assert ops.yarn(10_000.0, 128, factor=4.0, trained_len=4096, attention_factor=1.0)[1] == 1.0


def test_linear_and_dynamic_scaling() -> None:
    base = ops.inverse_frequencies(10_000.0, 64)
    assert ops.linear_scaling(base, 2.0) == tuple(f / 2 for f in base)
    assert ops.dynamic_ntk(10_000.0, 64, 2.0, 2048) == base
    stretched = ops.dynamic_ntk(10_000.0, 64, 2.0, 2048, 8192)
    theta = 10_000.0 * (2.0 * 8192 / 2048 - 1.0) ** (64 / 62)
    assert stretched == ops.inverse_frequencies(theta, 64) and stretched[0] == base[0] and stretched[-1] < base[-1]


def plain_attention(q, k, v, position, scale, window=None, softcap=None, slope=0.0):
    """One query [D] of one head over keys and values [Tk, D]."""
    scores = []
    for j, key in enumerate(k):
        score = float(q.astype(float) @ key.astype(float)) * scale
        score = softcap * math.tanh(score / softcap) if softcap else score
        seen = j <= position and (window is None or j > position - window)
        scores.append(score - slope * (position - j) if seen else -math.inf)
    weights = np.exp(np.array(scores) - max(scores))
    return weights / weights.sum() @ v.astype(float)


@pytest.mark.parametrize(
    "options", [{}, {"window": 3}, {"softcap": 1.5}, {"window": 2, "softcap": 0.5}, {"alibi": True}]
)
def test_attention_variants(options) -> None:
    q, k, v = floats(4, 4, 8), floats(9, 2, 8, seed=1), floats(9, 2, 8, seed=2)
    positions = np.array([5, 6, 7, 8])
    options = dict(options)
    slopes = ops.alibi_slopes(4) if options.pop("alibi", False) else None
    given = ops.attention(q, k, v, positions, 0.3, **options, alibi_slopes=slopes)
    for t, head in np.ndindex(4, 4):
        expected = plain_attention(
            q[t, head],
            k[:, head // 2],
            v[:, head // 2],
            positions[t],
            0.3,
            **options,
            slope=slopes[head] if slopes else 0,
        )
        np.testing.assert_allclose(given[t, head], expected, rtol=1e-4, atol=1e-5)


def test_bidirectional_attention_sees_everything() -> None:
    q, k, v = floats(5, 2, 4), floats(5, 2, 4, seed=1), floats(5, 2, 4, seed=2)
    given = ops.bidirectional_attention(q, k, v, 0.5)
    for t, head in np.ndindex(5, 2):
        expected = plain_attention(q[t, head], k[:, head], v[:, head], 4, 0.5)
        np.testing.assert_allclose(given[t, head], expected, rtol=1e-4, atol=1e-5)


def test_alibi_slopes_of_eight_and_twelve_heads() -> None:
    assert ops.alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))
    assert ops.alibi_slopes(12)[:8] == ops.alibi_slopes(8)
    assert ops.alibi_slopes(12)[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
