"""Linear layers and swiglu of the native kernels against NumPy, for every format, batch size and number of threads."""

import platform

import numpy as np
import pytest

from aie_tensor import DType, Matrix, native, ops, quantize
from aie_tensor.errors import InvalidInputError
from aie_tensor.native import PackedMatrix

pytestmark = pytest.mark.native

FORMATS = [DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1]
READ_ONLY = [DType.Q5_0, DType.Q5_1, DType.Q4_K, DType.Q5_K, DType.Q6_K]  # types that we only read
BATCHES = [1, 2, 3, 7, 16, 40]


def weights(rng, n, k, dtype=DType.F32):
    return quantize(rng.standard_normal((n, k), dtype=np.float32) / np.float32(np.sqrt(k)), dtype)


def stored(rng, n, k, dtype):
    """Random bytes as blocks of `dtype`; their half-precision numbers, wherever they stand, are finite and small."""
    blocks = rng.integers(0, 256, (n * k // dtype.block_size, dtype.block_bytes), dtype=np.uint8)
    halves = {DType.Q5_1: (0, 2), DType.Q4_K: (0, 2), DType.Q5_K: (0, 2), DType.Q6_K: (208,)}.get(dtype, (0,))
    for at in halves:
        values = (rng.standard_normal(len(blocks)) / 100).astype(np.float16)
        blocks[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    return Matrix(dtype, (n, k), blocks.reshape(-1))


def close(actual, expected):
    """Within 1e-5 of the largest magnitude: float32 sums of some hundred terms in another order."""
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


def run_linear(bench, x, matrices, *, lib=None, activations="fp32", **options):
    """x [T, K] through one linear operator -> [T, ΣN]"""
    plan = bench(lib, max_tokens=len(x))
    packed = [PackedMatrix.pack(plan.lib, m, activations=activations) for m in matrices]
    source, out = plan.buffer(x), plan.buffer(width=sum(p.n for p in packed))
    add = plan.buffer(options.pop("add")) if "add" in options else None
    plan.builder.linear(source, packed, out, add=add, **options)
    plan.run_tokens(len(x))
    return plan.read(out, len(x))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("num_tokens", BATCHES)
def test_linear_matches_numpy(bench, dtype, num_tokens):
    rng = np.random.default_rng(num_tokens)
    matrix, x = weights(rng, 53, 416, dtype), rng.standard_normal((num_tokens, 416), dtype=np.float32)
    close(run_linear(bench, x, [matrix]), ops.linear(x, matrix.dequantize()))


@pytest.mark.parametrize("dtype", READ_ONLY)
def test_blocks_of_files_are_read_bit_for_bit(bench, dtype):
    """Products with the rows of an identity matrix are the weights themselves, few rows at a time and many."""
    rng = np.random.default_rng(7)
    matrix = stored(rng, 37, 512, dtype)
    exact = matrix.dequantize()
    assert np.isfinite(exact).all() and len(np.unique(exact)) > 1000
    identity = np.eye(512, dtype=np.float32)
    for begin, end in ((0, 1), (1, 4), (4, 12), (12, 512)):
        found = run_linear(bench, identity[begin:end], [matrix])
        np.testing.assert_array_equal(found, exact.T[begin:end])
    plan = bench()
    out = plan.buffer(width=512)
    plan.builder.embed(matrix, out)
    plan.run([(0, 4)], token_ids=[36, 0, 9, 17])
    np.testing.assert_array_equal(plan.read(out, 4), exact[[36, 0, 9, 17]])


@pytest.mark.parametrize("dtype", READ_ONLY)
def test_the_sums_of_every_type_have_one_order(bench, dtype):
    rng = np.random.default_rng(8)
    matrix, x = stored(rng, 100, 512, dtype), rng.standard_normal((40, 512), dtype=np.float32)
    whole = run_linear(bench, x, [matrix])
    close(whole, ops.linear(x, matrix.dequantize()))
    expanded = run_linear(bench, x, [Matrix.from_array(matrix.dequantize())])
    np.testing.assert_array_equal(whole, expanded)
    for rows in (slice(0, 1), slice(3, 5), slice(8, 15)):
        np.testing.assert_array_equal(run_linear(bench, x[rows], [matrix]), whole[rows])


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_plain_rows_may_have_any_length(bench, dtype, num_tokens):
    rng = np.random.default_rng(1)
    matrix, x = weights(rng, 17, 37, dtype), rng.standard_normal((num_tokens, 37), dtype=np.float32)
    close(run_linear(bench, x, [matrix]), ops.linear(x, matrix.dequantize()))


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_rows_bits_do_not_depend_on_its_batch(bench, dtype):
    rng = np.random.default_rng(2)
    matrix, x = weights(rng, 100, 448, dtype), rng.standard_normal((40, 448), dtype=np.float32)
    whole = run_linear(bench, x, [matrix])
    np.testing.assert_array_equal(run_linear(bench, x[:7], [matrix]), whole[:7])
    for row in (0, 6, 39):
        np.testing.assert_array_equal(run_linear(bench, x[row : row + 1], [matrix])[0], whole[row])


@pytest.mark.parametrize("dtype", [DType.F32, DType.Q4_1])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_hundreds_of_rows_in_blocks_and_by_any_number_of_threads(bench, dtype, num_threads):
    """Rows are packed for the register tile, and cut into blocks; matrices meet within a tile."""
    rng = np.random.default_rng(5)
    parts = [weights(rng, n, 2080, dtype) for n in (16, 40, 23)]
    x = rng.standard_normal((1021, 2080), dtype=np.float32)
    plan = bench(max_tokens=len(x), num_threads=num_threads)
    source, out, swiglu = plan.buffer(x), plan.buffer(width=79), plan.buffer(width=40)
    packed = [PackedMatrix.pack(plan.lib, m) for m in parts]
    plan.builder.linear(source, packed, out)
    plan.builder.swiglu(source, packed[1], packed[1], swiglu)
    plan.run_tokens(len(x))
    whole = plan.read(out, len(x))
    close(whole, np.concatenate([ops.linear(x, m.dequantize()) for m in parts], axis=1))
    close(plan.read(swiglu, len(x)), ops.silu(whole[:, 16:56]) * whole[:, 16:56])
    for rows in (slice(1020, 1021), slice(503, 507), slice(700, 730)):
        np.testing.assert_array_equal(run_linear(bench, x[rows], parts), whole[rows])


@pytest.mark.parametrize("activations", ["fp32", "int8"])
@pytest.mark.parametrize("num_tokens", [1, 9, 60])
def test_products_of_the_same_rows_one_after_another(bench, num_tokens, activations):
    """Those that follow find the rows packed; one that reads others in between must not."""
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((2, num_tokens, 96), dtype=np.float32)
    matrices = [weights(rng, n, 96, DType.Q8_0) for n in (20, 48, 33, 20)]
    plan = bench(max_tokens=num_tokens, num_threads=3)
    sources = [plan.buffer(x) for x in (a, b)]
    order, outs = [0, 0, 1, 0], []
    for which, matrix in zip(order, matrices, strict=True):
        outs.append(plan.buffer(width=matrix.shape[0]))
        plan.builder.linear(sources[which], [PackedMatrix.pack(plan.lib, matrix, activations=activations)], outs[-1])
    for _ in range(2):
        plan.run_tokens(num_tokens)
        for which, matrix, out in zip(order, matrices, outs, strict=True):
            x = plan.read(sources[which], num_tokens)
            rounded = ops.round_activations(x) if activations == "int8" else x
            close(plan.read(out, num_tokens), ops.linear(rounded, matrix.dequantize()))
        plan.array(sources[0])[:] = b  # the next step has other rows in the same place


@pytest.mark.parametrize("num_tokens", [1, 9])
def test_concatenation_bias_and_residual(bench, num_tokens):
    rng = np.random.default_rng(3)
    parts = [weights(rng, 40, 64, DType.Q8_0), weights(rng, 23, 64, DType.F32), weights(rng, 16, 64, DType.Q4_1)]
    x = rng.standard_normal((num_tokens, 64), dtype=np.float32)
    residual = rng.standard_normal((num_tokens, 79), dtype=np.float32)
    bias = rng.standard_normal(23, dtype=np.float32)
    expected = np.concatenate([ops.linear(x, p.dequantize()) for p in parts], axis=1) + residual
    expected[:, 40:63] += bias
    close(run_linear(bench, x, parts, add=residual, biases=[None, bias, None]), expected)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_tokens", [1, 2, 19])
def test_swiglu_matches_numpy_with_any_number_of_threads(bench, num_threads, num_tokens):
    rng = np.random.default_rng(4)
    gate, up = weights(rng, 75, 96, DType.Q4_1), weights(rng, 75, 96, DType.Q8_0)
    x = rng.standard_normal((num_tokens, 96), dtype=np.float32)
    plan = bench(max_tokens=num_tokens, num_threads=num_threads)
    source, out = plan.buffer(x), plan.buffer(width=75)
    plan.builder.swiglu(source, PackedMatrix.pack(plan.lib, gate), PackedMatrix.pack(plan.lib, up), out)
    plan.run_tokens(num_tokens)
    close(plan.read(out, num_tokens), ops.silu(ops.linear(x, gate.dequantize())) * ops.linear(x, up.dequantize()))


def test_nan_and_infinity_reach_the_output(bench):
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[1, 6] = np.nan, np.inf
    matrix = Matrix.from_array(np.full((20, 64), 0.5, np.float32))
    result = run_linear(bench, x, [matrix])
    assert np.isnan(result[0]).all() and np.isinf(result[1]).all() and (result[2] == 32).all()


def test_what_cannot_be_packed_is_refused(native_lib):
    with pytest.raises(InvalidInputError, match="2-D matrices"):
        PackedMatrix.pack(native_lib, Matrix.from_array(np.ones(8, np.float32)))
    with pytest.raises(InvalidInputError, match="F64"):
        PackedMatrix.pack(native_lib, Matrix.from_array(np.ones((8, 8))))


DOT_FORMATS = [DType.Q8_0, DType.Q4_0, DType.Q4_1]


def int8_linear(bench, x, matrices, **options):
    return run_linear(bench, x, matrices, activations="int8", **options)


@pytest.mark.parametrize("dtype", DOT_FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 12, 40])
def test_int8_activations_are_rounded_as_the_reference_rounds_them(bench, dtype, num_tokens):
    rng = np.random.default_rng(num_tokens)
    matrix, x = weights(rng, 53, 416, dtype), rng.standard_normal((num_tokens, 416), dtype=np.float32)
    x[0, :32] = 0  # a block of zeros has no scale
    x[-1, 32:] *= np.float32(1e3)
    result = int8_linear(bench, x, [matrix])
    close(result, ops.linear(ops.round_activations(x), matrix.dequantize()))
    assert np.abs(result - ops.linear(x, matrix.dequantize())).max() > 1e-4  # and not as if nothing were rounded


@pytest.mark.parametrize("dtype", DOT_FORMATS)
def test_a_rows_bits_do_not_depend_on_its_batch_with_int8_activations(bench, dtype):
    rng = np.random.default_rng(2)
    matrix, x = weights(rng, 100, 448, dtype), rng.standard_normal((640, 448), dtype=np.float32)
    whole = int8_linear(bench, x, [matrix])
    for rows in (slice(0, 1), slice(3, 10), slice(5, 45), slice(500, 640), slice(639, 640)):
        np.testing.assert_array_equal(int8_linear(bench, x[rows], [matrix]), whole[rows])


@pytest.mark.parametrize("num_tokens", [1, 9])
def test_int8_matrices_side_by_side_with_bias_and_residual(bench, num_tokens):
    rng = np.random.default_rng(3)
    parts = [weights(rng, 40, 64, DType.Q8_0), weights(rng, 23, 64, DType.Q4_0), weights(rng, 16, 64, DType.Q4_1)]
    x = rng.standard_normal((num_tokens, 64), dtype=np.float32)
    residual = rng.standard_normal((num_tokens, 79), dtype=np.float32)
    bias = rng.standard_normal(23, dtype=np.float32)
    rounded = ops.round_activations(x)
    expected = np.concatenate([ops.linear(rounded, p.dequantize()) for p in parts], axis=1) + residual
    expected[:, 40:63] += bias
    close(int8_linear(bench, x, parts, add=residual, biases=[None, bias, None]), expected)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_tokens", [1, 2, 70])
def test_int8_swiglu_matches_numpy_with_any_number_of_threads(bench, num_threads, num_tokens):
    rng = np.random.default_rng(4)
    gate, up = weights(rng, 75, 96, DType.Q4_1), weights(rng, 75, 96, DType.Q8_0)
    x = rng.standard_normal((num_tokens, 96), dtype=np.float32)
    plan = bench(max_tokens=num_tokens, num_threads=num_threads)
    source, out = plan.buffer(x), plan.buffer(width=75)
    plan.builder.swiglu(source, *(PackedMatrix.pack(plan.lib, m, activations="int8") for m in (gate, up)), out)
    plan.run_tokens(num_tokens)
    rounded = ops.round_activations(x)
    expected = ops.silu(ops.linear(rounded, gate.dequantize())) * ops.linear(rounded, up.dequantize())
    close(plan.read(out, num_tokens), expected)


def test_every_digit_of_int8_weights_is_multiplied_exactly(bench):
    """Weights of -128 and -127 against activations of -127 and 127: what would overflow 16 bits."""
    blocks = np.zeros((16, 34), np.uint8)
    blocks[:, :2] = np.full(16, 1, np.float16).view(np.uint8).reshape(16, 2)
    blocks[:, 2:] = np.tile(np.array([-128, 127, -127, 1], np.int8), 8).view(np.uint8)
    matrix = Matrix(DType.Q8_0, (16, 32), blocks.reshape(-1))
    x = np.tile(np.array([-127, 127, -127, 127], np.float32), (2, 8))
    x[1] = -x[0]
    np.testing.assert_array_equal(int8_linear(bench, x, [matrix]), x @ matrix.dequantize().T)


@pytest.mark.parametrize(("dtype", "halves"), [(DType.Q4_0, 1), (DType.Q4_1, 2)])
def test_the_largest_digits_of_a_whole_block_fit_into_16_bits(bench, dtype, halves):
    blocks = np.full((16, 2 * halves + 16), 0xFF, np.uint8)
    blocks[:, :2] = np.full(16, 1, np.float16).view(np.uint8).reshape(16, 2)
    if halves == 2:
        blocks[:, 2:4] = np.full(16, 2, np.float16).view(np.uint8).reshape(16, 2)
    matrix = Matrix(dtype, (16, 32), blocks.reshape(-1))
    x = np.full((5, 32), 127, np.float32) * np.array([[1], [-1], [1], [-1], [1]], np.float32)
    np.testing.assert_array_equal(int8_linear(bench, x, [matrix]), x @ matrix.dequantize().T)


def test_nan_reaches_the_output_of_int8_products(bench):
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[1, 6] = np.nan, np.inf
    result = int8_linear(bench, x, [weights(np.random.default_rng(1), 20, 64, DType.Q8_0)])
    assert np.isnan(result[0]).all() and not np.isfinite(result[1]).any() and np.isfinite(result[2]).all()


@pytest.mark.parametrize("flags", [["-mavx2", "-mfma", "-mf16c"], []], ids=["avx2", "portable"])
def test_int8_products_of_other_instruction_sets(bench, flags):
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        pytest.skip("these flags are for x86")
    lib = native.load(flags=flags)
    rng = np.random.default_rng(6)
    x = rng.standard_normal((7, 96), dtype=np.float32)
    for dtype in DOT_FORMATS:
        matrix = weights(rng, 40, 96, dtype)
        expected = ops.linear(ops.round_activations(x), matrix.dequantize())
        close(int8_linear(bench, x, [matrix], lib=lib), expected)


@pytest.mark.parametrize("dtype", [DType.F32, DType.Q6_K])
def test_types_without_an_int8_product_are_refused_by_name(native_lib, dtype):
    matrix = (
        stored(np.random.default_rng(1), 16, 512, dtype)
        if dtype.is_quantized
        else Matrix.from_array(np.ones((8, 8), np.float32))
    )
    with pytest.raises(InvalidInputError, match=f"int8 activations.*not by {dtype.name}"):
        PackedMatrix.pack(native_lib, matrix, activations="int8")
