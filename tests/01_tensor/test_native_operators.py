"""Functions of elements and operators on rows of the native kernels, against NumPy and against double precision."""

import math

import numpy as np
import pytest

from aie_tensor import DType, ops, quantize

pytestmark = pytest.mark.native

ONE_ELEMENT = ["silu", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "quick_gelu"]


def exact(name, x):
    """In double precision."""
    x = x.astype(np.float64)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-x))
        return {
            "silu": lambda: x * sigmoid,
            "relu": lambda: np.maximum(x, 0),
            "sigmoid": lambda: sigmoid,
            "tanh": lambda: np.tanh(x),
            "gelu": lambda: x * np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x]),
            "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "quick_gelu": lambda: x / (1 + np.exp(-1.702 * x)),
        }[name]()


@pytest.mark.parametrize("name", ONE_ELEMENT)
def test_functions_are_accurate_everywhere(native_lib, name):
    x = np.concatenate([np.linspace(-12, 12, 20_001), np.geomspace(1e-30, 60, 999), -np.geomspace(1e-30, 60, 998)])
    x = x.astype(np.float32)
    found, expected = native_lib.map(name, x), exact(name, x)
    # relative to the result, or, where 1 + something cancels, to the argument
    bound = 1e-6 * np.abs(expected) + 1e-7 * np.minimum(np.abs(x), 1) + 1e-37
    if name in ("tanh", "gelu", "relu"):
        bound = 2e-6 * np.abs(expected) * np.maximum(1, x * x) + 1e-37
    assert (np.abs(found - expected) <= bound).all(), x[np.argmax(np.abs(found - expected) - bound)]
    reference = getattr(ops, name)(x)
    np.testing.assert_allclose(found, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ONE_ELEMENT)
def test_functions_at_the_edges(native_lib, name):
    found = native_lib.map(name, np.array([0, np.nan, np.inf, 3e38, -3e38], np.float32))
    at_zero, nan, *large = found
    assert at_zero == (0.5 if name == "sigmoid" else 0) and np.isnan(nan)
    assert not np.isnan(large).any()


def test_functions_with_a_constant(native_lib):
    x = np.linspace(-200, 200, 1001, dtype=np.float32)
    np.testing.assert_array_equal(native_lib.map("scale", x, 0.3), x * np.float32(0.3))
    np.testing.assert_allclose(native_lib.map("softcap", x, 30), ops.softcap(x, 30), rtol=1e-6)


@pytest.mark.parametrize("width", [1, 19, 64, 9000])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_elements_and_norms_of_rows(bench, width, num_threads):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((5, width), dtype=np.float32) * 3 + 100 for _ in range(2))
    weight, bias = rng.standard_normal((2, width), dtype=np.float32)
    plan = bench(num_threads=num_threads)
    x, y = plan.buffer(a), plan.buffer(b)
    outs = {name: plan.buffer(width=width) for name in ("tanh", "mul", "layer", "bare", "rms", "l2")}
    plan.builder.map("tanh", x, outs["tanh"])
    plan.builder.mul(x, y, outs["mul"])
    plan.builder.layer_norm(x, weight, bias, 1e-5, outs["layer"])
    plan.builder.layer_norm(x, weight, None, 1e-5, outs["bare"])
    plan.builder.rms_norm(x, weight, 1e-6, outs["rms"], offset=1.0)
    plan.builder.l2_normalize(x, outs["l2"])
    plan.run([(0, 5)])
    got = {name: plan.read(out, 5) for name, out in outs.items()}
    np.testing.assert_allclose(got["tanh"], np.tanh(a), rtol=1e-6)
    np.testing.assert_array_equal(got["mul"], a * b)
    wide = a.astype(np.float64)
    normed = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(got["layer"], normed + bias, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(got["bare"], normed, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(got["rms"], ops.rms_norm(a, weight, 1e-6, offset=1.0), rtol=2e-6)
    np.testing.assert_allclose(got["l2"], ops.l2_normalize(a), rtol=2e-6)


def test_a_row_of_several_vectors(bench):
    rng = np.random.default_rng(2)
    x, weight = rng.standard_normal((3, 4 * 24), dtype=np.float32), rng.standard_normal(24, dtype=np.float32)
    plan = bench()
    source, heads, layer = plan.buffer(x), plan.buffer(width=96), plan.buffer(width=96)
    plan.builder.rms_norm(source, weight, 1e-6, heads, num_heads=4, offset=1.0)
    plan.builder.layer_norm(source, weight, weight, 1e-6, layer, num_parts=4)
    plan.run([(0, 3)])
    expected = ops.rms_norm(x, weight, 1e-6, offset=1.0, num_heads=4)
    np.testing.assert_allclose(plan.read(heads, 3), expected, rtol=2e-6, atol=1e-6)
    expected = ops.layer_norm(x.reshape(3, 4, 24), weight, weight, 1e-6).reshape(3, 96)
    np.testing.assert_allclose(plan.read(layer, 3), expected, rtol=2e-5, atol=1e-6)


def test_rows_of_zeros_have_no_length(bench):
    plan = bench()
    x, out = plan.buffer(np.zeros((1, 20), np.float32)), plan.buffer(width=20)
    plan.builder.l2_normalize(x, out)
    plan.run([(0, 1)])
    assert (plan.read(out, 1) == 0).all()


def test_look_ups_by_token_and_by_position(bench):
    rng = np.random.default_rng(3)
    words, places = (rng.standard_normal((n, 32), dtype=np.float32) for n in (50, 16))
    table = quantize(places, DType.Q8_0)
    plan = bench()
    x, y = plan.buffer(width=32), plan.buffer(width=32)
    plan.builder.embed(quantize(words, DType.F32), x, scale=5.5)
    plan.builder.embed(table, y, index="positions")
    plan.run([(3, 2), (0, 1)], token_ids=[7, 0, 49])
    np.testing.assert_array_equal(plan.read(x, 3), words[[7, 0, 49]] * np.float32(5.5))
    np.testing.assert_array_equal(plan.read(y, 3), table.dequantize()[[3, 4, 0]])
    small = bench()
    small.builder.embed(quantize(places[:4], DType.F32), small.buffer(width=32), index="positions")
    with pytest.raises(AssertionError, match="positions"):
        small.run([(0, 5)])


@pytest.mark.parametrize("iou", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("most", [None, 1, 7, 1 << 40])
def test_suppression_of_boxes_matches_numpy(native_lib, iou, most):
    rng = np.random.default_rng(4)
    corner, size = rng.random((60, 2), dtype=np.float32), rng.random((60, 2), dtype=np.float32) / 3
    boxes = np.concatenate([corner, corner + size], axis=1)
    boxes[7] = boxes[3]  # the same box twice, and one that is inside out
    boxes[9, 2:] = boxes[9, :2] - 1
    scores = rng.random(60, dtype=np.float32).round(1)  # many of one score
    scores[[5, 30]] = np.nan
    assert native_lib.nms(boxes, scores, iou, most).tolist() == ops.nms(boxes, scores, iou, most).tolist()


def test_no_boxes(native_lib):
    assert native_lib.nms(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.5, None).tolist() == []


@pytest.mark.parametrize("kind", ["mean", "cls", "max", "last"])
def test_pooling_of_packed_sequences_at_the_edges(bench, kind):
    x = np.random.default_rng(5).standard_normal((8, 37), dtype=np.float32)
    x[2, 3] = np.nan
    plan = bench(num_threads=3)
    source, out = plan.buffer(x), plan.buffer(width=37)
    plan.builder.pool_tokens(source, out, kind)
    plan.run([(0, 1), (0, 6), (0, 1)])
    expected = ops.pool_tokens(x, np.array([0, 1, 7, 8]), kind)
    np.testing.assert_allclose(plan.read(out, 3), expected, rtol=1e-6, atol=1e-6)
