"""Element types: sizes, block layouts, the way to and from NumPy."""

import gguf
import numpy as np
import pytest

from aie_tensor import DType, InvalidInputError


@pytest.mark.parametrize("dtype", [member for member in DType if member.name in gguf.GGMLQuantizationType.__members__])
def test_layout_is_ggmls(dtype: DType) -> None:
    expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.name]]
    assert (dtype.block_size, dtype.block_bytes) == expected


def test_nbytes_counts_whole_blocks() -> None:
    assert DType.Q4_1.nbytes(64) == 40
    assert DType.F32.nbytes(0) == 0
    with pytest.raises(InvalidInputError, match="33 elements do not fill whole q8_0 blocks of 32"):
        DType.Q8_0.nbytes(33)
    assert DType.F4.nbytes(6) == 3
    assert DType.F6_E2M3.nbytes(8) == 6
    with pytest.raises(InvalidInputError, match="3 elements do not fill whole f4 blocks of 2"):
        DType.F4.nbytes(3)


def test_only_blocks_with_a_scale_are_quantized() -> None:
    quantized = {member.name for member in DType if member.is_quantized}
    assert quantized == {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}


@pytest.mark.parametrize("dtype", [member for member in DType if member.numpy is not None])
def test_numpy_round_trip(dtype: DType) -> None:
    assert dtype.numpy is not None
    assert DType.from_numpy(dtype.numpy) is dtype
    assert dtype.numpy.itemsize == dtype.block_bytes


def test_numpy_types_without_counterpart_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="complex128"):
        DType.from_numpy(np.dtype(np.complex128))
