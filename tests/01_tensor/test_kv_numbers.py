"""How keys and values are rounded for the cache, by hand."""

import numpy as np
import pytest

from aie_tensor.ops import read_kv, round_kv


def test_fp32_is_kept() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
    stored, scales = round_kv(x, "fp32")
    assert scales is None
    np.testing.assert_array_equal(read_kv(stored, scales), x)


def test_fp16_rounds_to_even_and_stays_finite() -> None:
    stored, scales = round_kv(np.array([1 + 2**-11, 1 + 3 * 2**-11, 1e6, -1e6, 2**-25, np.nan], np.float32), "fp16")
    assert scales is None and stored.dtype == np.float16
    np.testing.assert_array_equal(read_kv(stored, None), np.array([1, 1 + 2**-9, 65504, -65504, 0, np.nan], np.float32))


def test_int8_has_a_scale_for_each_vector() -> None:
    stored, scales = round_kv(np.array([[127, -63.5, 0.4, 0.6], [0, 0, 0, 0], [-2, 1, 0, 0]], np.float32), "int8")
    assert stored.tolist() == [[127, -64, 0, 1], [0, 0, 0, 0], [-127, 64, 0, 0]]
    np.testing.assert_array_equal(scales, np.array([1, 0, 2 / 127], np.float32))


def test_int8_is_at_most_half_a_level_off() -> None:
    x = np.random.default_rng(1).standard_normal((50, 64), dtype=np.float32)
    stored, scales = round_kv(x, "int8")
    assert scales is not None
    assert (np.abs(read_kv(stored, scales) - x) <= 0.501 * scales[:, None]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_int8_does_not_lose_what_is_no_number(wrong: float) -> None:
    stored, scales = round_kv(np.array([[1, wrong], [1, 2]], np.float32), "int8")
    restored = read_kv(stored, scales)
    assert np.isnan(restored[0]).all() and np.isfinite(restored[1]).all()


def test_int8_takes_the_smallest_numbers_for_zero() -> None:
    stored, scales = round_kv(np.full((1, 4), 1e-45, np.float32), "int8")
    assert not read_kv(stored, scales).any()
