"""The exercises of the stage's README. Each test is skipped until its exercise is done, and then decides."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from aie_tensor import DoubleFreeError, DType, Matrix, NaivePool
from aie_tensor.memdebug.drills import DRILLS, run_drill


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


def test_exercise_3_a_fifth_leak_is_planted_and_found() -> None:
    fifth = list(DRILLS)[4:]
    if not fifth:
        pytest.skip("exercise 3 is not done: the catalogue has the four drills that it came with")
    for name in fifth:
        broken, fixed = run_drill(name), run_drill(name, fixed=True)
        assert broken.growing, "it does not leak"
        assert broken.named == broken.planted, f"the report names {broken.named}"
        assert broken.held_by or broken.in_cycles, "nobody can say who holds it"
        assert not fixed.growing, "the fix leaks too"
