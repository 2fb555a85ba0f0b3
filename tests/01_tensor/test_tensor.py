"""`Tensor`: pooled memory with a shape; views that keep it alive."""

import gc

import numpy as np
import pytest

from aie_tensor import DoubleFreeError, DType, InvalidInputError, MemoryPool, Tensor, UseAfterFreeError


@pytest.fixture
def pool() -> MemoryPool:
    return MemoryPool()


def test_from_array_copies_into_the_pool(pool: MemoryPool) -> None:
    source = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = Tensor.from_array(pool, source, owner="ids")
    source[...] = 0
    assert (tensor.dtype, tensor.shape, tensor.nbytes, tensor.is_view) == (DType.I32, (2, 3), 24, False)
    assert tensor.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert pool.stats().requested_bytes == 24


def test_zeros_clears_a_reused_block(pool: MemoryPool) -> None:
    dirty = Tensor.from_array(pool, np.ones(100, dtype=np.float32))
    dirty.release()
    assert not Tensor.zeros(pool, (10, 10)).numpy().any()
    assert pool.stats().num_reuses == 1


def test_views_share_memory(pool: MemoryPool) -> None:
    tensor = Tensor.from_array(pool, np.arange(12, dtype=np.float32).reshape(3, 4))
    tensor.reshape(-1)[5:7].numpy()[...] = -1
    assert tensor.numpy()[1].tolist() == [4, -1, -1, 7]
    assert tensor[:, 1:3].shape == (3, 2)
    assert tensor[..., 0].shape == (3,)
    element = tensor[2, 3]
    element.numpy()[...] = 42
    assert (element.shape, tensor.numpy()[2, 3]) == ((), 42)


def test_a_view_keeps_the_bytes_after_the_release(pool: MemoryPool) -> None:
    tensor = Tensor.from_array(pool, np.arange(12, dtype=np.float32).reshape(3, 4))
    row = tensor[1]
    tensor.release()
    with pytest.raises(UseAfterFreeError):
        tensor.numpy()
    Tensor.zeros(pool, (3, 4))
    assert row.numpy().tolist() == [4, 5, 6, 7]
    del row
    gc.collect()
    assert pool.stats().num_live == 0


def test_retain_and_release_count_owners(pool: MemoryPool) -> None:
    tensor = Tensor.empty(pool, (4,)).retain()
    tensor.release()
    tensor.numpy()
    tensor.release()
    with pytest.raises(DoubleFreeError):
        tensor.release()


def test_reshape_never_copies_in_silence(pool: MemoryPool) -> None:
    tensor = Tensor.empty(pool, (3, 4))
    with pytest.raises(InvalidInputError, match="would need a copy"):
        tensor[:, 1:3].reshape(-1)
    with pytest.raises(InvalidInputError, match=r"cannot see shape \(3, 4\) as \(5,\)"):
        tensor.reshape(5)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.Q8_0])
def test_types_that_numpy_lacks_are_refused(pool: MemoryPool, dtype: DType) -> None:
    with pytest.raises(InvalidInputError, match="keep such weights as a Matrix"):
        Tensor.empty(pool, (32,), dtype)


def test_negative_axes_are_refused(pool: MemoryPool) -> None:
    with pytest.raises(InvalidInputError):
        Tensor.empty(pool, (-2, -2))
