"""The reference operators against their formulas, written again as plain loops in float64."""

import math

import numpy as np
import pytest

from aie_tensor import DType, InvalidInputError, Matrix, ops, quantize


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(np.float32)


def test_embedding_reads_rows_of_a_quantized_table() -> None:
    table = quantize(floats(9, 64), DType.Q8_0)
    picked = ops.embedding(np.array([8, 0], dtype=np.int32), table)
    assert np.array_equal(picked, table.dequantize()[[8, 0]])
    with pytest.raises(InvalidInputError):
        ops.embedding(np.array([9]), table)


def test_rms_norm() -> None:
    x, weight = floats(3, 8), floats(8)
    normed = ops.rms_norm(x, weight, eps=1e-5)
    for row, result in zip(x.astype(float), normed, strict=True):
        root = math.sqrt(sum(v * v for v in row) / 8 + 1e-5)
        np.testing.assert_allclose(result, [v / root * w for v, w in zip(row, weight, strict=True)], rtol=1e-5)


def test_linear_takes_a_row_per_output() -> None:
    x, w, bias = floats(2, 4), floats(3, 4), floats(3)
    expected = [[sum(x[t, k] * w[n, k] for k in range(4)) + bias[n] for n in range(3)] for t in range(2)]
    np.testing.assert_allclose(ops.linear(x, w, bias), expected, rtol=1e-5)
    np.testing.assert_allclose(ops.linear(x, w), ops.linear(x, w, bias) - bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_rotates_the_right_pairs(interleaved: bool) -> None:
    x, inv_freq = floats(2, 1, 4), np.array([1.0, 0.1], dtype=np.float32)
    rotated = ops.rope(x, np.array([3, 5]), inv_freq, interleaved)
    for t, position in enumerate((3, 5)):
        for i, freq in enumerate((1.0, 0.1)):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + 2)
            turned = complex(x[t, 0, a], x[t, 0, b]) * np.exp(1j * position * freq)
            assert rotated[t, 0, a] == pytest.approx(turned.real, abs=1e-5)
            assert rotated[t, 0, b] == pytest.approx(turned.imag, abs=1e-5)


def test_rope_makes_scores_depend_on_distance_only() -> None:
    q, k, inv_freq = floats(1, 1, 8), floats(1, 1, 8) + 1, 10.0 ** -np.arange(4, dtype=np.float32)

    def score(at_q: int, at_k: int) -> float:
        turned_q = ops.rope(q, np.array([at_q]), inv_freq, interleaved=False)
        return float((turned_q * ops.rope(k, np.array([at_k]), inv_freq, interleaved=False)).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), rel=1e-3)


def test_attention_is_causal_and_grouped() -> None:
    """Two queries at positions 3 and 4 over five keys, four query heads sharing two key heads."""
    q, k, v, scale = floats(2, 4, 8), floats(5, 2, 8), floats(5, 2, 8) + 1, 0.3
    mixed = ops.attention(q, k, v, np.array([3, 4]), scale)
    for t, position in enumerate((3, 4)):
        for head in range(4):
            group = head // 2
            scores = [math.exp(scale * float(q[t, head] @ k[j, group])) for j in range(position + 1)]
            expected = sum(s * v[j, group].astype(float) for j, s in enumerate(scores)) / sum(scores)
            np.testing.assert_allclose(mixed[t, head], expected, rtol=1e-4, atol=1e-5)


def test_attention_of_a_prompt_in_chunks_is_that_of_the_whole() -> None:
    q, k, v = floats(6, 2, 4), floats(6, 1, 4), floats(6, 1, 4) - 1
    whole = ops.attention(q, k, v, np.arange(6), 0.5)
    first = ops.attention(q[:4], k[:4], v[:4], np.arange(4), 0.5)
    second = ops.attention(q[4:], k, v, np.arange(4, 6), 0.5)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-5, atol=1e-6)


def test_silu_and_softmax_survive_extremes() -> None:
    x = np.array([[-300.0, -1.0, 0.0, 300.0]], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert ops.silu(x)[0] == pytest.approx([0.0, -0.26894143, 0.0, 300.0])
        assert ops.softmax(x * 1000).tolist() == [[0.0, 0.0, 0.0, 1.0]]
        assert np.isfinite(ops.log_softmax(x * 1000)).all()
    np.testing.assert_allclose(ops.log_softmax(x / 100), np.log(ops.softmax(x / 100)), rtol=1e-5)


def test_everything_stays_float32() -> None:
    x, inv_freq = floats(2, 2, 8), np.ones(4, dtype=np.float32)
    flat = x.reshape(2, 16)
    table = Matrix.from_array(floats(4, 16))
    results = [
        ops.embedding(np.array([1]), table), ops.rms_norm(flat, floats(16), 1e-5), ops.linear(flat, floats(3, 16)),
        ops.rope(x, np.array([0, 1]), inv_freq, True), ops.attention(x, x, x, np.array([0, 1]), 0.5),
        ops.silu(x), ops.softmax(x), ops.log_softmax(x),
    ]  # fmt: skip
    assert {result.dtype for result in results} == {np.dtype(np.float32)}
