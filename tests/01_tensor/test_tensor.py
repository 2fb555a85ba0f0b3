"""`Tensor`: pooled memory with a shape; views that keep it alive."""

import gc
import sys
import threading

import numpy as np
import pytest

from aie_tensor import DoubleFreeError, DType, InvalidInputError, Ledger, MemoryPool, Tensor, UseAfterFreeError


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


@pytest.mark.parametrize(
    "shape", [(-2, -2), (2.5,), "ab", 7, None, (True,), (1 << 62, 2), (1 << 40, 1 << 40), (0, 1 << 63)]
)
def test_bad_shapes_are_refused_before_memory_is_taken(pool: MemoryPool, shape: object) -> None:
    with pytest.raises(InvalidInputError):
        Tensor.empty(pool, shape)  # type: ignore[arg-type]
    assert pool.stats().num_allocations == 0


@pytest.mark.parametrize("dtype", ["f32", np.float32, None])
def test_types_other_than_ours_are_refused(pool: MemoryPool, dtype: object) -> None:
    with pytest.raises(InvalidInputError, match="must be a DType"):
        Tensor.empty(pool, (2,), dtype)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="NumPy array or a Tensor"):
        Tensor.from_array(pool, [1, 2])  # type: ignore[arg-type]


def test_a_tensor_on_an_allocation_has_to_fit(pool: MemoryPool) -> None:
    block = pool.allocate(12)
    with pytest.raises(InvalidInputError, match="needs 16 bytes; the allocation has 12"):
        Tensor(block, DType.F32, (4,))
    Tensor(block, DType.F32, (3,)).release()
    assert pool.stats().num_live == 0


def test_an_empty_tensor_and_one_without_axes(pool: MemoryPool) -> None:
    nothing = Tensor.zeros(pool, (3, 0, 2))
    assert (nothing.nbytes, nothing.numpy().shape, nothing[1:].numpy().shape) == (0, (3, 0, 2), (2, 0, 2))
    single = Tensor.from_array(pool, np.array(5, dtype=np.int64))
    assert (single.shape, single.strides, int(single.numpy()), int(single[...].numpy())) == ((), (), 5, 5)


def test_strides_are_numpys(pool: MemoryPool) -> None:
    tensor = Tensor.from_array(pool, np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    for view, array in [
        (tensor, tensor.numpy()),
        (tensor.transpose(), tensor.numpy().T),
        (tensor.transpose(1, 2, 0), tensor.numpy().transpose(1, 2, 0)),
        (tensor.transpose(-1, 0, 1)[::-1, 1:], tensor.numpy().transpose(-1, 0, 1)[::-1, 1:]),
        (tensor[1, ::2], tensor.numpy()[1, ::2]),
    ]:
        assert (view.strides, view.is_contiguous) == (array.strides, array.flags.c_contiguous)
        assert view.numpy().tolist() == array.tolist()
        assert view.address == array.ctypes.data == view.numpy().ctypes.data


def test_the_base_of_every_view_is_the_tensor_that_owns(pool: MemoryPool) -> None:
    tensor = Tensor.zeros(pool, (4, 6))
    assert (tensor.base, tensor.device) == (None, "cpu")
    assert tensor[1].reshape(2, 3).transpose().base is tensor


def test_a_view_of_a_view_survives_both(pool: MemoryPool) -> None:
    tensor = Tensor.from_array(pool, np.arange(12, dtype=np.float32).reshape(3, 4))
    row = tensor[1]
    pair = row[1:3]
    tensor.release()
    del tensor, row
    gc.collect()
    assert pool.stats().num_live == 1
    assert pair.numpy().tolist() == [5, 6]
    array = pair.numpy()
    del pair
    gc.collect()
    assert (pool.stats().num_live, array.tolist()) == (1, [5, 6])
    del array
    gc.collect()
    assert pool.stats().num_live == 0


def test_a_view_can_be_viewed_after_the_release(pool: MemoryPool) -> None:
    tensor = Tensor.from_array(pool, np.arange(12, dtype=np.float32).reshape(3, 4))
    rows = tensor[1:]
    tensor.release()
    assert rows.transpose()[1].numpy().tolist() == [5, 9]


def test_a_view_of_a_released_tensor_cannot_be_made(pool: MemoryPool) -> None:
    tensor = Tensor.zeros(pool, (3, 4))
    tensor.release()
    for touch in (
        lambda: tensor[0],
        lambda: tensor.reshape(-1),
        tensor.transpose,
        tensor.retain,
        lambda: tensor.address,
    ):
        with pytest.raises(UseAfterFreeError):
            touch()


def test_misuse_shows_both_stacks() -> None:
    tensor = Tensor.zeros(MemoryPool(ledger=Ledger(enabled=True)), (3,), owner="logits")
    tensor.release()
    for touch in (tensor.release, tensor.numpy):
        with pytest.raises((DoubleFreeError, UseAfterFreeError), match="logits") as misuse:
            touch()
        assert misuse.value.allocated_at and misuse.value.freed_at


def test_a_context_manager_releases(pool: MemoryPool) -> None:
    with Tensor.zeros(pool, (3, 4)) as tensor, tensor[1] as row:
        assert row.numpy().tolist() == [0, 0, 0, 0]
        del row
    gc.collect()
    assert pool.stats().num_live == 0
    with pytest.raises(DoubleFreeError):
        tensor.release()


def test_what_python_drops_goes_back(pool: MemoryPool) -> None:
    tensor = Tensor.zeros(pool, (3, 4))
    del tensor
    gc.collect()
    assert (pool.stats().num_live, pool.stats().num_dropped) == (0, 1)


def test_counting_is_atomic_under_threads(pool: MemoryPool) -> None:
    tensor = Tensor.from_array(pool, np.arange(4, dtype=np.float32))
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(200):
            tensor.retain()
            assert tensor[1:].numpy()[0] == 1
            tensor.release()

    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_interval)
    tensor.release()
    assert pool.stats().num_live == 0


def test_copies(pool: MemoryPool) -> None:
    source = Tensor.from_array(pool, np.arange(12, dtype=np.float32).reshape(3, 4))
    target = Tensor.zeros(pool, (4, 3))
    assert target.copy_from(source.transpose()) is target
    assert target.numpy().tolist() == source.numpy().T.tolist()
    target[0].copy_from(np.full(3, 7, dtype=np.float32))
    host = target.to_host()
    target.numpy()[...] = 0
    assert host[0].tolist() == [7, 7, 7]


def test_copies_never_convert_or_broadcast(pool: MemoryPool) -> None:
    target = Tensor.zeros(pool, (4, 3))
    for array in (np.zeros((4, 3)), np.zeros(3, dtype=np.float32)):
        with pytest.raises(InvalidInputError, match="must be the same"):
            target.copy_from(array)
    with pytest.raises(InvalidInputError):
        target.copy_from([0.0])  # type: ignore[arg-type]


def test_a_tensor_on_the_cpu_is_none_of_cupys(pool: MemoryPool) -> None:
    with pytest.raises(InvalidInputError, match=r"\.numpy\(\)"):
        Tensor.zeros(pool, (2,)).cupy()
