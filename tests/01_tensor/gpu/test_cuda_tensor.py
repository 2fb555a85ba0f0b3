"""Tensors on a GPU's pool, with a made-up CuPy: sharing, copies, lifetimes in the order of streams. No GPU needed."""

import gc

import numpy as np
import pytest

from aie_tensor import InvalidInputError, MemoryPool, Tensor, UseAfterFreeError
from aie_tensor.memory.cuda import CudaStream, CudaUpstream, PinnedUpstream
from aie_tensor.memory.cuda.replay import FromCudaMalloc, FromCudaPool, FromCupy
from aie_tensor.memory.replay import replay

MIB = 1 << 20


@pytest.fixture
def pool(fake):
    return MemoryPool(name="gpu", upstream=CudaUpstream())


@pytest.fixture
def numbers():
    return np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_to_the_device_and_back(pool, numbers):
    tensor = Tensor.from_array(pool, numbers, owner="hidden states")
    assert (tensor.device, repr(tensor)) == ("cuda:0", "Tensor(f32, (2, 3, 4), cuda:0)")
    numbers_before = numbers.copy()
    numbers[...] = 0
    assert tensor.to_host().tolist() == numbers_before.tolist()


def test_reading_back_comes_after_the_work_that_is_queued(pool, numbers):
    first, second = CudaStream("first"), CudaStream("second")
    tensor = Tensor.from_array(pool, numbers)
    array = tensor.cupy()
    first.raw.queue(lambda: array.fill(1))
    second.raw.queue(lambda: array.fill(2))
    assert (tensor.to_host(stream=first) == 1).all()
    assert len(second.raw.work) == 1  # nobody waited for it
    assert (tensor.to_host() == 2).all()


def test_numpy_cannot_reach_it_and_says_what_can(pool):
    with pytest.raises(InvalidInputError, match=r"on cuda:0: \.to_host\(\) .*\.cupy\(\)"):
        Tensor.empty(pool, (2,)).numpy()
    with pytest.raises(InvalidInputError):
        pool.allocate(8).array(np.float32, 2)


def test_zeros(fake, pool):
    Tensor.from_array(pool, np.ones(1000, dtype=np.float32)).release()
    assert not Tensor.zeros(pool, (1000,)).to_host().any()
    assert Tensor.zeros(pool, (0, 3)).to_host().shape == (0, 3)
    stream = CudaStream("compute")
    queued = Tensor.zeros(pool, (1000,), stream=stream)
    assert len(stream.raw.work) == 1
    stream.synchronize()
    assert not queued.to_host().any()


def test_cupy_shares_the_memory_and_keeps_it(pool, numbers):
    tensor = Tensor.from_array(pool, numbers)
    array = tensor.cupy()
    assert (array.shape, array.strides, array.dtype) == (numbers.shape, numbers.strides, numbers.dtype)
    array[0, 0, 0] = 42
    assert tensor.to_host()[0, 0, 0] == 42
    part = array[1]
    del array
    tensor.release()
    with pytest.raises(UseAfterFreeError):
        tensor.cupy()
    gc.collect()
    assert pool.stats().num_live == 1
    assert part.tolist() == numbers[1].tolist()
    del part
    gc.collect()
    assert pool.stats().num_live == 0


def test_views_are_arithmetic_on_any_device(fake, pool, numbers):
    tensor = Tensor.from_array(pool, numbers)
    num_copies = len(fake.copies)
    view = tensor.transpose(2, 0, 1)[1:3, :, ::-1]
    array = numbers.transpose(2, 0, 1)[1:3, :, ::-1]
    assert (len(fake.copies), view.strides, view.base) == (num_copies, array.strides, tensor)
    assert view.cupy().tolist() == array.tolist()
    tensor.release()
    assert view.to_host().tolist() == array.tolist()


def test_a_copy_is_one_call_per_run_without_a_gap(fake, pool, numbers):
    tensor = Tensor.from_array(pool, numbers)
    assert fake.copies == [numbers.nbytes]
    assert tensor[:, 1:].to_host().tolist() == numbers[:, 1:].tolist()
    assert fake.copies[1:] == [2 * 4 * 4] * 2  # two matrices of two rows that touch
    tensor[..., 1].copy_from(np.full((2, 3), 9, dtype=np.float32))
    assert fake.copies[3:] == [4] * 6
    assert (tensor.to_host()[..., 1] == 9).all()


def test_device_to_device(pool, numbers):
    source = Tensor.from_array(pool, numbers)
    target = Tensor.zeros(pool, (4, 3, 2))
    target.copy_from(source.transpose())
    assert target.to_host().tolist() == numbers.T.tolist()
    second = Tensor.zeros(MemoryPool(upstream=CudaUpstream(1)), numbers.shape).copy_from(source)
    assert (second.device, second.to_host().tolist()) == ("cuda:1", numbers.tolist())


def test_a_callers_array_is_copied_before_the_call_returns(pool, numbers):
    stream = CudaStream("copy")
    tensor = Tensor.empty(pool, numbers.shape)
    wanted = numbers.tolist()
    tensor.copy_from(numbers, stream=stream)
    numbers[...] = 0
    assert tensor.to_host().tolist() == wanted


def test_a_queued_copy_keeps_both_blocks_until_it_has_run(pool, numbers):
    copy = CudaStream("copy")
    pinned = MemoryPool(name="pinned", upstream=PinnedUpstream())
    staged = Tensor.from_array(pinned, numbers)
    tensor = Tensor.empty(pool, numbers.shape)
    tensor.copy_from(staged, stream=copy)
    staged.release()
    tensor_view = tensor[...]
    assert (pinned.stats().pending_bytes > 0, len(copy.raw.work)) == (True, 1)
    Tensor.from_array(pinned, np.zeros_like(numbers))  # must not get the same block
    copy.synchronize()
    assert tensor_view.to_host().tolist() == numbers.tolist()
    assert pinned.stats().pending_bytes == 0


def test_copies_beside_work_are_ordered_by_events(pool, numbers):
    """The pipeline of an engine: the next input travels while the last one is worked on."""
    compute, copy = CudaStream("compute"), CudaStream("copy")
    pinned = MemoryPool(name="pinned", upstream=PinnedUpstream())
    result = Tensor.zeros(pinned, numbers.shape)
    with Tensor.from_array(pinned, numbers) as staged, Tensor.empty(pool, numbers.shape, stream=compute) as tensor:
        tensor.copy_from(staged, stream=copy)
        compute.wait_for(copy.record())
        array = tensor.cupy()
        compute.raw.queue(lambda: np.multiply(array, 2, out=array))
        copy.wait_for(compute.record())
        result.copy_from(tensor, stream=copy)
    copy.synchronize()
    assert result.numpy().tolist() == (2 * numbers).tolist()


def test_released_tensors_are_not_copied(pool, numbers):
    tensor = Tensor.from_array(pool, numbers)
    tensor.release()
    for stream in (None, CudaStream("copy")):
        with pytest.raises(UseAfterFreeError):
            Tensor.zeros(pool, numbers.shape).copy_from(tensor, stream=stream)
    with pytest.raises(UseAfterFreeError):
        tensor.to_host()


def test_a_stream_has_no_place_in_a_copy_within_the_host(fake, numbers):
    target = Tensor.zeros(MemoryPool(), numbers.shape)
    with pytest.raises(InvalidInputError, match="a stream orders copies"):
        target.copy_from(numbers, stream=CudaStream("copy"))


def test_nothing_leaks(fake, pool, numbers):
    for _ in range(50):
        with Tensor.from_array(pool, numbers) as tensor:
            tensor[0].cupy()
            tensor.to_host()
    gc.collect()
    pool.trim()
    assert (pool.stats().num_live, fake.device_memory.used) == (0, 0)


def test_replaying_a_trace_on_each_allocator(fake):
    sizes = [1000, 3000, 1000, MIB, 1000, 3000, 1000, MIB] * 4
    ticks = iter(range(10_000))
    pool = MemoryPool(upstream=CudaUpstream())
    for allocator in (FromCudaPool(pool, CudaStream("compute")), FromCupy(), FromCudaMalloc()):
        result = replay(sizes, allocator, window=2, clock=lambda: next(ticks))
        assert result.peak_reserved_bytes >= MIB
        assert (result.reuse > 0.5) == (result.name != "cudaMalloc")
    pool.trim()
    gc.collect()
    pool.trim()
    assert pool.stats().num_live == 0
