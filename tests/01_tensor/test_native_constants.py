"""Where packed weights, vectors and tables lie: in a pool that gets all of it back."""

import numpy as np

from aie_tensor import DType, MemoryPool, native, quantize
from aie_tensor.native import Constants, PackedMatrix


def test_everything_goes_back_to_the_pool():
    pool = MemoryPool()
    constants = Constants(pool)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    copy = constants.store(values.T, "norms and biases")
    large = constants.allocate(1 << 20, "weights")
    assert copy.flags.c_contiguous and not large.any()
    np.testing.assert_array_equal(copy, values.T)
    assert copy.ctypes.data % 64 == large.ctypes.data % 64 == 0
    stats = pool.stats()
    assert (stats.num_live, stats.requested_bytes) == (2, 24 + (1 << 20))
    del copy, large
    constants.close()
    constants.close()
    stats = pool.stats()
    assert (stats.num_live, stats.live_bytes, stats.num_dropped) == (0, 0, 0)


def test_small_pieces_are_zeroed_even_in_a_used_block():
    pool = MemoryPool()
    with pool.allocate(1000) as used:
        used.array(np.uint8, 1000)[:] = 255
    constants = Constants(pool)
    assert not constants.allocate(1000, "weights").any()
    constants.close()


def test_without_a_pool_it_is_plain_memory():
    constants = Constants()
    assert constants.allocate(100, "weights").nbytes == 100
    constants.close()


def test_weights_packed_into_a_pool_have_the_same_bits(native_lib):
    pool = MemoryPool()
    constants = Constants(pool)
    matrix = quantize(np.random.default_rng(0).standard_normal((20, 64), dtype=np.float32), DType.Q8_0)
    plain = PackedMatrix.pack(native_lib, matrix)
    pooled = PackedMatrix.pack(native_lib, matrix, allocate=lambda n: constants.allocate(n, "weights"))
    np.testing.assert_array_equal(plain.data, pooled.data)
    assert pool.stats().requested_bytes == pooled.nbytes
    del pooled
    constants.close()
    assert pool.stats().num_live == 0


def test_a_plan_knows_what_its_threads_hold(native_lib):
    kv = native.KVLayout(np.zeros((1, 1, 1, 16, 16), np.float32), np.zeros((1, 1, 1, 16, 16), np.float32))

    def scratch(num_threads: int) -> int:
        builder = native.PlanBuilder(native_lib, num_threads=num_threads, max_tokens=8, kv=kv, max_context=16)
        with builder.build() as plan:
            return plan.scratch_bytes

    each = scratch(2) - scratch(1)  # the rest is shared by all
    assert scratch(3) - scratch(2) == each > 0 and scratch(1) >= each


def test_settled_constants_keep_their_values_and_addresses():
    pool = MemoryPool()
    constants = native.Constants(pool)
    arrays = [constants.store(np.full(300_000, i, np.float32), f"weights {i}") for i in range(12)]  # 1.2 MB each
    addresses = [array.ctypes.data for array in arrays]
    constants.settle()
    assert [array.ctypes.data for array in arrays] == addresses
    assert all((array == i).all() for i, array in enumerate(arrays))
    del arrays
    constants.close()
    assert pool.stats().live_bytes == 0
    native.Constants().settle()  # without a pool there is nothing to ask for
