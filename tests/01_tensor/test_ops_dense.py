"""Convolution, pooling, normalisation and selection against their formulas, as plain loops in float64."""

import itertools
import math

import numpy as np
import pytest

from aie_tensor import InvalidInputError, ops


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def plain_conv2d(x, w, bias, stride, padding, dilation, groups):
    (batch, channels, height, width), (outputs, per_group, kh, kw) = x.shape, w.shape
    rows = (height + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    columns = (width + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((batch, outputs, rows, columns))
    for b, o, i, j in itertools.product(range(batch), range(outputs), range(rows), range(columns)):
        total = float(bias[o])
        first = o // (outputs // groups) * per_group
        for c, u, v in itertools.product(range(per_group), range(kh), range(kw)):
            y = i * stride[0] - padding[0] + u * dilation[0]
            z = j * stride[1] - padding[1] + v * dilation[1]
            if 0 <= y < height and 0 <= z < width:
                total += float(x[b, first + c, y, z]) * float(w[o, c, u, v])
        out[b, o, i, j] = total
    assert channels == per_group * groups
    return out


@pytest.mark.parametrize(
    ("groups", "stride", "padding", "dilation"),
    [(1, (1, 1), (0, 0), (1, 1)), (2, (2, 1), (1, 2), (2, 1)), (4, (1, 3), (2, 0), (1, 2))],
)
def test_conv2d(groups, stride, padding, dilation) -> None:
    x, w, bias = floats(2, 4, 6, 7), floats(8, 4 // groups, 3, 2), floats(8)
    given = ops.conv2d(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    expected = plain_conv2d(x, w, bias, stride, padding, dilation, groups)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    assert given.dtype == np.float32


def test_conv1d_is_a_convolution_one_pixel_high() -> None:
    x, w = floats(2, 6, 9), floats(6, 2, 3)
    given = ops.conv1d(x, w, stride=2, padding=1, dilation=2, groups=3)
    expected = plain_conv2d(x[:, :, None], w[:, :, None], np.zeros(6), (1, 2), (0, 1), (1, 2), 3)[:, :, 0]
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="does not fit"):
        ops.conv2d(floats(1, 3, 4, 4), floats(2, 2, 1, 1))
    with pytest.raises(InvalidInputError, match="does not fit"):
        ops.conv2d(floats(1, 2, 2, 2), floats(1, 2, 3, 3))


def test_max_pooling_never_picks_the_padding() -> None:
    x = -np.abs(floats(1, 1, 4, 4)) - 1
    pooled = ops.max_pool2d(x, (3, 3), stride=(2, 2), padding=(1, 1))
    expected = [[x[0, 0, :2, :2].max(), x[0, 0, :2, 1:4].max()], [x[0, 0, 1:4, :2].max(), x[0, 0, 1:4, 1:4].max()]]
    np.testing.assert_array_equal(pooled[0, 0], expected)


def test_average_pooling_counts_what_it_is_told_to() -> None:
    x = np.ones((1, 1, 3, 3), dtype=np.float32)
    padded = ops.avg_pool2d(x, (2, 2), stride=(2, 2), padding=(1, 1))
    np.testing.assert_allclose(padded[0, 0], [[0.25, 0.5], [0.5, 1.0]])
    alone = ops.avg_pool2d(x, (2, 2), stride=(2, 2), padding=(1, 1), count_include_pad=False)
    np.testing.assert_array_equal(alone[0, 0], np.ones((2, 2)))
    ceil = ops.avg_pool2d(x, (2, 2), stride=(2, 2), ceil_mode=True)
    np.testing.assert_array_equal(ceil[0, 0], np.ones((2, 2)))  # windows cut by the edge divide by what they hold
    np.testing.assert_allclose(ops.global_avg_pool(floats(2, 3, 4, 5)), floats(2, 3, 4, 5).mean((2, 3)), rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "ceil_mode", "count"),
    [(5, 2, 2, 0, False, 2), (5, 2, 2, 0, True, 3), (4, 2, 2, 0, True, 2), (5, 1, 3, 0, True, 2),
     (2, 3, 1, 0, False, 0),
     (6, 2, 3, 1, True, 3), (5, 2, 3, 1, True, 2)],
)  # fmt: skip
def test_window_count(size, kernel, stride, padding, ceil_mode, count) -> None:
    assert ops.window_count(size, kernel, stride, padding, ceil_mode=ceil_mode) == count


def test_layer_norm_with_a_mean_far_from_zero() -> None:
    x, weight, bias = floats(3, 8) + 1000, floats(8), floats(8, seed=1)
    for row, result in zip(x.astype(float), ops.layer_norm(x, weight, bias, 1e-5), strict=True):
        spread = math.sqrt(row.var() + 1e-5)
        np.testing.assert_allclose(result, (row - row.mean()) / spread * weight + bias, rtol=1e-2, atol=1e-3)
    np.testing.assert_array_equal(ops.layer_norm(x, weight, None, 1e-5) + bias, ops.layer_norm(x, weight, bias, 1e-5))


def test_batch_and_group_norm() -> None:
    x, weight, bias, mean, variance = floats(2, 6, 3, 3), *(floats(6, seed=s) for s in (1, 2, 3)), floats(6) ** 2
    given = ops.batch_norm(x, weight, bias, mean, variance, 1e-5)
    expected = (x[1, 4] - mean[4]) / np.sqrt(variance[4] + 1e-5) * weight[4] + bias[4]
    np.testing.assert_allclose(given[1, 4], expected, rtol=1e-4, atol=1e-5)
    grouped = ops.group_norm(x, 3, weight, bias, 1e-5)
    part = x[0, 2:4].astype(float)
    expected = (part[1] - part.mean()) / np.sqrt(part.var() + 1e-5) * weight[3] + bias[3]
    np.testing.assert_allclose(grouped[0, 3], expected, rtol=1e-4, atol=1e-5)


def test_rms_norm_of_each_head_and_with_gemmas_offset() -> None:
    x, weight = floats(2, 6), floats(3)
    given = ops.rms_norm(x, weight, 1e-6, num_heads=2)
    np.testing.assert_array_equal(given[:, 3:], ops.rms_norm(x[:, 3:], weight, 1e-6))
    np.testing.assert_allclose(
        ops.rms_norm(x[:, :3], weight, 1e-6, offset=1.0), ops.rms_norm(x[:, :3], weight + 1, 1e-6), rtol=1e-6
    )


def test_activations() -> None:
    x = np.concatenate([np.linspace(-9, 9, 301, dtype=np.float32), np.float32([-1e30, 1e30, -np.inf, np.inf])])
    wide = x[:301].astype(float)
    with np.errstate(all="raise", under="ignore"):
        exact, approximate, quick = ops.gelu(x[:301]), ops.gelu_tanh(x[:301]), ops.quick_gelu(x[:301])
    cdf = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in wide])
    np.testing.assert_allclose(exact, wide * cdf, rtol=1e-5, atol=1e-6)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    np.testing.assert_allclose(approximate, 0.5 * wide * (1 + np.tanh(inner)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(quick, wide / (1 + np.exp(-1.702 * wide)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ops.sigmoid(x[:301]), 1 / (1 + np.exp(-wide)), rtol=1e-5)
    assert ops.relu(x)[-1] == np.inf and ops.relu(x)[-2] == 0
    np.testing.assert_allclose(ops.softcap(x[:301], 5.0), 5 * np.tanh(wide / 5), rtol=1e-5, atol=1e-6)
    for function in (ops.gelu, ops.gelu_tanh, ops.silu, ops.sigmoid, ops.tanh):
        assert np.isfinite(function(x[301:303])).all(), function


def test_pooling_of_packed_sequences_does_not_see_neighbours() -> None:
    x, starts = floats(7, 4), np.array([0, 3, 4, 7], dtype=np.int32)
    for kind, alone in [("mean", lambda s: s.mean(0)), ("max", lambda s: s.max(0)), ("cls", lambda s: s[0]),
                        ("last", lambda s: s[-1])]:  # fmt: skip
        pooled = ops.pool_tokens(x, starts, kind)
        np.testing.assert_array_equal(pooled, np.stack([alone(x[:3]), alone(x[3:4]), alone(x[4:])]))
    with pytest.raises(InvalidInputError, match="empty"):
        ops.pool_tokens(x, np.array([0, 3, 3, 7]), "mean")


def test_l2_normalize_leaves_zeros_alone() -> None:
    given = ops.l2_normalize(np.float32([[3, 4], [0, 0]]))
    np.testing.assert_allclose(given, [[0.6, 0.8], [0, 0]])


def test_top_k_takes_the_first_of_equals() -> None:
    values, where = ops.top_k(np.float32([[1, 3, 3, 2]]), 3)
    assert values.tolist() == [[3, 3, 2]] and where.tolist() == [[1, 2, 3]]
    with pytest.raises(InvalidInputError, match="from 1 to 4"):
        ops.top_k(np.zeros((1, 4), np.float32), 5)


def test_nms_keeps_the_best_of_each_pile() -> None:
    boxes = np.float32([[0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 10, 10], [5, 0, 15, 10]])
    scores = np.float32([0.8, 0.9, 0.1, 0.8, 0.7])
    # Box 1 overlaps 0 and 3 by 90/110 and 4 by 60/140.
    assert ops.nms(boxes, scores, 0.5).tolist() == [1, 4, 2]
    assert ops.nms(boxes, scores, 0.4).tolist() == [1, 2]
    assert ops.nms(boxes, scores, 0.9).tolist() == [1, 0, 4, 2]
    assert ops.nms(boxes, scores, 0.5, max_output=1).tolist() == [1]
    assert ops.nms(boxes[:0], scores[:0], 0.5).tolist() == []
    with pytest.raises(InvalidInputError, match=r"\[N, 4\]"):
        ops.nms(boxes[:, :3], scores, 0.5)
