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


# Types that are only read: any block with finite scales must give the reference's bits.

READ_TYPES = {  # type → where its half-precision numbers lie in a block
    DType.Q5_0: (0,), DType.Q5_1: (0, 2), DType.Q2_K: (80, 82), DType.Q3_K: (108,), DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2), DType.Q6_K: (208,),
}  # fmt: skip


def random_blocks(dtype: DType, num_blocks: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (num_blocks, dtype.block_bytes), dtype=np.uint8)
    for offset in READ_TYPES[dtype]:
        halves = random.standard_normal(num_blocks).astype("<f2")
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(num_blocks, 2)
    return blocks


@pytest.mark.parametrize("dtype", READ_TYPES)
def test_random_blocks_expand_as_in_ggml(dtype: DType) -> None:
    blocks = random_blocks(dtype, 96, seed=11)
    matrix = Matrix(dtype, (12, 8 * dtype.block_size), blocks.reshape(-1))
    expected = ggml_dequantize(blocks.reshape(12, -1), gguf.GGMLQuantizationType[dtype.name])
    assert matrix.dequantize().tobytes() == expected.tobytes()
    assert np.array_equal(matrix.rows([11, 3]), expected[[11, 3]])


@pytest.mark.parametrize("dtype", READ_TYPES)
def test_every_byte_of_a_block_matters(dtype: DType) -> None:
    """So that no field is read from the wrong place: flipping any bit changes something, as in the reference."""
    block = random_blocks(dtype, 1, seed=12)
    for byte in range(dtype.block_bytes):
        changed = block.copy()
        changed[0, byte] ^= 0x11  # one bit in each nibble
        expected = ggml_dequantize(changed, gguf.GGMLQuantizationType[dtype.name])
        ours = Matrix(dtype, (dtype.block_size,), changed.reshape(-1)).dequantize()
        assert ours.tobytes() == expected.tobytes()
        assert ours.tobytes() != Matrix(dtype, (dtype.block_size,), block.reshape(-1)).dequantize().tobytes()


# Small floats, against the formula worked out one by one.


def small_float(pattern: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    sign = -1.0 if pattern >> (exponent_bits + mantissa_bits) else 1.0
    exponent = pattern >> mantissa_bits & ((1 << exponent_bits) - 1)
    fraction = (pattern & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    return sign * (fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))


@pytest.mark.parametrize(
    ("dtype", "fields", "special"),
    [
        (DType.F8_E4M3, (4, 3, 7), {0x7F: np.nan, 0xFF: np.nan}),
        (DType.F8_E5M2, (5, 2, 15), {
            0x7C: np.inf, 0xFC: -np.inf, **dict.fromkeys([0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF], np.nan)}),
        (DType.F8_E4M3FNUZ, (4, 3, 8), {0x80: np.nan}),
        (DType.F8_E5M2FNUZ, (5, 2, 16), {0x80: np.nan}),
    ],
)  # fmt: skip
def test_each_eight_bit_float(dtype: DType, fields: tuple[int, int, int], special: dict[int, float]) -> None:
    expected = [special.get(pattern, small_float(pattern, *fields)) for pattern in range(256)]
    ours = Matrix(dtype, (256,), np.arange(256, dtype=np.uint8)).dequantize()
    np.testing.assert_array_equal(ours, np.array(expected, np.float32))
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.signbit(ours)[numbers], np.signbit(expected)[numbers])  # −0 is not 0


def test_the_largest_of_each_small_float() -> None:
    tops = {"F8_E4M3": 448, "F8_E5M2": 57344, "F8_E4M3FNUZ": 240, "F8_E5M2FNUZ": 57344, "F8_E8M0": 2.0**127}
    for name, top in tops.items():
        values = Matrix(DType[name], (256,), np.arange(256, dtype=np.uint8)).dequantize()
        assert values[np.isfinite(values)].max() == top


def test_four_bit_floats_have_their_first_element_in_the_low_nibble() -> None:
    data = np.array([0x10, 0x32, 0x54, 0x76, 0x98, 0xFE], np.uint8)
    values = Matrix(DType.F4, (2, 6), data).dequantize()
    assert values.tolist() == [[0, 0.5, 1, 1.5, 2, 3], [4, 6, -0.0, -0.5, -4, -6]]


@pytest.mark.parametrize(("dtype", "shape"), [(DType.F6_E2M3, (4,)), (DType.F6_E3M2, (4,)), (DType.C64, (1,))])
def test_what_float32_cannot_show_is_refused(dtype: DType, shape: tuple[int, ...]) -> None:
    matrix = Matrix(dtype, shape, np.zeros(dtype.nbytes(shape[0]), np.uint8))
    with pytest.raises(InvalidInputError, match=f"{dtype.value} cannot be read as float32"):
        matrix.dequantize()


def test_array_is_a_view_in_the_files_own_type() -> None:
    data = np.arange(24, dtype=np.uint8)
    matrix = Matrix(DType.U16, (3, 4), data)
    assert matrix.array().dtype == np.dtype("<u2") and matrix.array().shape == (3, 4)
    assert np.shares_memory(matrix.array(), data)
    with pytest.raises(InvalidInputError, match="no type bf16"):
        Matrix(DType.BF16, (3, 4), data).array()


def test_a_bool_is_one_whatever_bit_is_set() -> None:
    assert Matrix(DType.BOOL, (4,), np.array([0, 1, 2, 255], np.uint8)).dequantize().tolist() == [0, 1, 1, 1]


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
