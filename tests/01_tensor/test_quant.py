"""`Matrix` and `quantize`, bit for bit against the `gguf` package."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as ggml_dequantize
from gguf.quants import quantize as ggml_quantize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aie_tensor import DType, InvalidInputError, Matrix, quantize

BLOCK_TYPES = [DType.Q8_0, DType.Q4_0, DType.Q4_1]
FILE_TYPES = [*BLOCK_TYPES, DType.F16, DType.BF16, DType.F32]


def assert_same_as_ggml(values: np.ndarray, dtype: DType) -> None:
    """Same bytes when quantized, same float32 bits when expanded."""
    theirs = gguf.GGMLQuantizationType[dtype.name]
    matrix = quantize(values, dtype)
    expected = ggml_quantize(values, theirs)
    assert matrix.data.tobytes() == expected.tobytes()
    expanded = ggml_dequantize(expected, theirs).astype(np.float32)
    assert matrix.dequantize().tobytes() == expanded.tobytes()


@pytest.mark.parametrize("dtype", FILE_TYPES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_random_weights_match_ggml(dtype: DType, scale: float) -> None:
    values = np.random.default_rng(7).standard_normal((64, 576)) * scale
    assert_same_as_ggml(values.astype(np.float32), dtype)


@pytest.mark.parametrize("dtype", FILE_TYPES)
def test_awkward_blocks_match_ggml(dtype: DType) -> None:
    """Zeros, constants, ties at half a step, the extreme on the last element, signs of zero."""
    rows = np.zeros((6, 64), dtype=np.float32)
    rows[1] = 1.5
    rows[2] = np.arange(-32, 32) + 0.5
    rows[3] = np.linspace(-127, 127, 64)
    rows[4, 31], rows[4, 63] = -8.0, 8.0
    rows[5] = -0.0
    assert_same_as_ggml(rows, dtype)


@pytest.mark.parametrize("dtype", FILE_TYPES)
@given(hnp.arrays(np.float32, (2, 32), elements=st.floats(-(2.0**15), 2.0**15, width=16)))
def test_any_weights_match_ggml(dtype: DType, values: np.ndarray) -> None:
    assert_same_as_ggml(values, dtype)


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_blocks_too_small_for_a_scale_become_zero(dtype: DType) -> None:
    """Where 1/d overflows, ggml converts NaN to an integer, which C leaves undefined; here the levels are 0."""
    values = np.full((1, 32), 1e-44, dtype=np.float32)
    values[0, :16] = 0
    assert not quantize(values, dtype).dequantize().any()


@pytest.mark.parametrize(("dtype", "steps"), [(DType.Q8_0, 127), (DType.Q4_0, 8), (DType.Q4_1, 15)])
def test_error_stays_within_one_step(dtype: DType, steps: int) -> None:
    values = np.random.default_rng(3).uniform(-1, 1, (16, 64)).astype(np.float32)
    reach = 2.0 if dtype is DType.Q4_1 else 1.0  # Q4_1's steps divide max − min, the others' the magnitude
    assert np.abs(quantize(values, dtype).dequantize() - values).max() <= reach / steps


@pytest.mark.parametrize("dtype", FILE_TYPES)
def test_rows_expand_only_what_is_asked(dtype: DType) -> None:
    values = np.random.default_rng(1).standard_normal((10, 64)).astype(np.float32)
    matrix = quantize(values, dtype)
    picked = matrix.rows([7, 0, 7])
    assert picked.dtype == np.float32
    assert np.array_equal(picked, matrix.dequantize()[[7, 0, 7]])
    assert matrix.rows([]).shape == (0, 64)


@pytest.mark.parametrize("index", [-1, 10])
def test_rows_out_of_range_are_refused(index: int) -> None:
    matrix = quantize(np.zeros((10, 32), dtype=np.float32), DType.Q8_0)
    with pytest.raises(InvalidInputError, match=r"0…9"):
        matrix.rows([index])


def test_data_may_be_a_read_only_view_at_an_odd_address() -> None:
    """As in a mapped GGUF file."""
    values = np.random.default_rng(2).standard_normal((4, 32)).astype(np.float32)
    for dtype in FILE_TYPES:
        source = quantize(values, dtype)
        odd = np.frombuffer(b"?" + source.data.tobytes(), dtype=np.uint8)[1:]
        assert not odd.flags.writeable
        assert np.array_equal(Matrix(dtype, (4, 32), odd).dequantize(), source.dequantize())


def test_from_array_shares_memory_and_keeps_rank() -> None:
    norm = np.ones(8, dtype=np.float32)
    matrix = Matrix.from_array(norm)
    assert np.shares_memory(matrix.data, norm)
    assert (matrix.shape, matrix.nbytes, matrix.dtype) == ((8,), 32, DType.F32)
    assert Matrix.from_array(norm, DType.F16).dtype is DType.F16


def test_bf16_keeps_nan_a_nan() -> None:
    # The payload sits in the lower half only: rounding the bits would carry it into infinity.
    nan = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert np.isnan(quantize(nan, DType.BF16).dequantize()).all()


@pytest.mark.parametrize(
    ("values", "dtype", "reason"),
    [
        (np.zeros((2, 33)), DType.Q8_0, "33 elements do not fill"),
        (np.full((1, 32), np.nan), DType.Q4_0, "NaN or infinity"),
        (np.full((1, 32), 1e30), DType.Q8_0, "scale overflows"),
        (np.zeros((1, 32)), DType.I8, "cannot quantize to i8"),
    ],
)
def test_what_no_block_can_hold_is_refused(values: np.ndarray, dtype: DType, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        quantize(values.astype(np.float32), dtype)


@pytest.mark.parametrize(
    ("shape", "data", "reason"),
    [
        ((2, 32), np.zeros(67, dtype=np.uint8), "needs 68 bytes, but there are 67"),
        ((32, 2), np.zeros(68, dtype=np.uint8), "2 elements do not fill whole"),
        ((2, 32), np.zeros((2, 34), dtype=np.uint8), "one contiguous 1-D uint8 array"),
        ((2, 32), np.zeros(136, dtype=np.uint8)[::2], "one contiguous 1-D uint8 array"),
    ],
)
def test_bytes_must_fit_the_shape(shape: tuple[int, ...], data: np.ndarray, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Matrix(DType.Q8_0, shape, data)
