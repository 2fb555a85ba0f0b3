"""The exercises of the stage's README. Each test is skipped until its exercise is done, and then decides."""

import inspect

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from aie_tensor import DoubleFreeError, DType, Matrix, MemoryPool, NaivePool

MIB = 1 << 20


def test_exercise_1_the_naive_pool_notices_a_double_free() -> None:
    pool = NaivePool()
    buffer = pool.take(1000)
    pool.give_back(buffer)
    try:
        pool.give_back(buffer)
    except DoubleFreeError:
        other = pool.take(1000)
        pool.give_back(other)  # a later, honest return still works
        assert pool.take(1000) is not pool.take(1000)
    else:
        pytest.skip("exercise 1 is not done: NaivePool still hands one buffer to two callers")


def test_exercise_2_iq4_nl_weights_can_be_read() -> None:
    iq4_nl = DType.__members__.get("IQ4_NL")
    if iq4_nl is None:
        pytest.skip("exercise 2 is not done: DType has no IQ4_NL")
    assert (iq4_nl.block_size, iq4_nl.block_bytes) == (32, 18)
    random = np.random.default_rng(5)
    stored = random.integers(0, 256, (8, 2, 18), dtype=np.uint8)
    stored[..., :2] = random.standard_normal((8, 2)).astype("<f2")[..., None].view(np.uint8)
    stored = stored.reshape(8, 36)
    matrix = Matrix(iq4_nl, (8, 64), stored.reshape(-1))
    assert np.array_equal(matrix.dequantize(), dequantize(stored, gguf.GGMLQuantizationType.IQ4_NL))


def test_exercise_3_trim_can_keep_a_part() -> None:
    if "keep_bytes" not in inspect.signature(MemoryPool.trim).parameters:
        pytest.skip("exercise 3 is not done: MemoryPool.trim takes no keep_bytes")
    pool = MemoryPool()
    for block in [pool.allocate(size * MIB) for size in (1, 2, 4, 8)]:
        block.release()
    returned = pool.trim(keep_bytes=4 * MIB)  # type: ignore[call-arg]
    stats = pool.stats()
    assert stats.cached_bytes <= 4 * MIB
    assert returned == 15 * MIB - stats.cached_bytes
    assert stats.cached_bytes >= 3 * MIB, "the largest blocks should go first, so that most of the allowance is used"
    assert pool.trim() == stats.cached_bytes
