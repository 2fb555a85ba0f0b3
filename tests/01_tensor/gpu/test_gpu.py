"""What only a GPU can show. Each test skips, with the reason, where CuPy or a GPU is missing.

    pip install -e '.[gpu]' && pytest -m gpu tests/01_tensor/gpu

runs them; everything that is logic is tested without a GPU in the other files here.
"""

import gc

import numpy as np
import pytest

from aie_tensor import MemoryPool, OutOfMemoryError, Tensor
from aie_tensor.errors import WriteAfterFreeError
from aie_tensor.memory.cuda import CudaStream, CudaUpstream, PinnedUpstream
from aie_tensor.memory.cuda.kernels import Kernels
from aie_tensor.memory.cuda.replay import FromCudaMalloc, FromCudaPool, FromCupy
from aie_tensor.memory.replay import replay

pytestmark = pytest.mark.gpu

MIB = 1 << 20
LONG = 2_000_000  # rounds of `axpy`: long enough for the host to be ahead, which the tests check; exact in float32
SLACK = 4 * MIB  # the driver keeps a chunk or two of what small allocations are cut from


@pytest.fixture
def upstream(gpu):
    """With CUDA's context made and the kernels compiled, which take memory of their own."""
    upstream = CudaUpstream(gpu.ordinal)
    region = upstream.reserve(512, zeroed=True)
    assert upstream.find_others(region.address, region.nbytes, 0) is None
    upstream.give_back(region)
    return upstream


@pytest.fixture
def pool(upstream):
    return MemoryPool(name="gpu", upstream=upstream)


@pytest.fixture
def axpy(gpu):
    """(y, x, rounds, stream): y := rounds · x + y, queued. Compiled before the test, so that queueing is quick."""
    kernels = Kernels(gpu)
    assert kernels.find_others(0, 0, 0) is None

    def queue(y, x, rounds, stream):
        kernels.axpy(y.address, x.address, 1.0, y.nbytes // 4, rounds=rounds, stream=stream.raw)

    return queue


def test_memory_is_taken_filled_searched_and_returned(upstream):
    before = upstream.used_bytes()
    region = upstream.reserve(64 * MIB, zeroed=True)
    assert upstream.used_bytes() >= before + 64 * MIB
    assert upstream.find_others(region.address, region.nbytes, 0) is None
    upstream.fill(region.address + 33 * MIB + 5, 3, 7)
    assert upstream.find_others(region.address, region.nbytes, 0) == (3, 33 * MIB + 5)
    for nbytes in (1, 15, 16, 17, 1000):  # the tail that is read byte by byte
        upstream.fill(region.address, nbytes, 1)
        upstream.fill(region.address + nbytes - 1, 1, 2)
        assert upstream.find_others(region.address, nbytes, 1) == (1, nbytes - 1)
        assert upstream.find_others(region.address, nbytes - 1, 1) is None
    upstream.give_back(region)
    assert upstream.used_bytes() <= before + SLACK


def test_capacity_and_the_processes_share(upstream):
    region = upstream.reserve(64 * MIB, zeroed=False)
    share = upstream.process_bytes()
    assert 64 * MIB <= upstream.used_bytes() <= upstream.capacity_bytes()
    assert share is None or 64 * MIB <= share <= upstream.capacity_bytes()
    upstream.give_back(region)


def test_more_than_there_is_ends_in_a_typed_error_and_harms_nothing(pool, upstream):
    with pytest.raises(OutOfMemoryError):
        pool.allocate(2 * upstream.capacity_bytes())
    with Tensor.zeros(pool, (1000,)) as tensor:
        assert not tensor.to_host().any()


def test_tensors_agree_with_numpy(pool):
    array = np.random.default_rng(0).standard_normal((5, 7, 9)).astype(np.float32)
    with Tensor.from_array(pool, array) as tensor:
        assert np.array_equal(tensor.to_host(), array)
        assert np.array_equal(tensor[1:4, ::2].to_host(), array[1:4, ::2])
        assert np.array_equal(tensor.transpose(2, 0, 1)[::-1].to_host(), array.transpose(2, 0, 1)[::-1])
        tensor[2].copy_from(np.zeros((7, 9), dtype=np.float32))
        assert not tensor.to_host()[2].any()


def test_cupy_shares_the_memory_and_keeps_it(pool, gpu):
    tensor = Tensor.from_array(pool, np.arange(12, dtype=np.float32).reshape(3, 4))
    view = tensor.transpose()[1:]
    array = view.cupy()
    assert (array.data.ptr, array.strides) == (view.address, view.strides)
    host = gpu.cupy.asnumpy(gpu.cupy.ascontiguousarray(array))
    assert host.tolist() == np.arange(12).reshape(3, 4).T[1:].tolist()
    tensor.release()
    del tensor, view
    gc.collect()
    assert pool.stats().num_live == 1
    del array
    gc.collect()
    assert pool.stats().num_live == 0


def test_a_block_goes_to_another_stream_only_after_its_event(pool, axpy):
    compute, other = CudaStream("compute"), CudaStream("other")
    x = Tensor.from_array(pool, np.ones(MIB // 4, dtype=np.float32))
    y = Tensor.zeros(pool, (MIB // 4,), stream=compute)
    address = y.address
    compute.synchronize()
    axpy(y, x, LONG, compute)
    y.release()
    assert not compute.record().done(), "the kernel has to outlast the release for this test to say anything"
    assert pool.allocate(MIB, stream=other).address != address
    assert pool.allocate(MIB, stream=compute).address == address  # its own stream need not wait
    compute.synchronize()


def test_a_released_block_is_not_overwritten_while_a_kernel_reads_it(pool, axpy):
    compute, other = CudaStream("compute"), CudaStream("other")
    y = Tensor.zeros(pool, (MIB // 4,), stream=compute)
    x = Tensor.from_array(pool, np.ones(MIB // 4, dtype=np.float32))
    x.used_on(compute)
    compute.synchronize()
    axpy(y, x, LONG, compute)
    x.release()  # the kernel still reads it
    for _ in range(8):
        Tensor.zeros(pool, (MIB // 4,), stream=other).release()
    compute.synchronize()
    assert (y.to_host() == LONG).all()


def test_copies_run_beside_kernels_and_events_keep_them_in_order(pool, gpu, axpy):
    """A copy that is queued after a long kernel on another stream arrives before it ends; the result, which waits for
    the kernel by an event, is right nevertheless."""
    compute, copy = CudaStream("compute"), CudaStream("copy")
    pinned = MemoryPool(name="pinned", upstream=PinnedUpstream(gpu.ordinal))
    ones = Tensor.from_array(pinned, np.ones(MIB // 4, dtype=np.float32))
    result = Tensor.zeros(pinned, (MIB // 4,))
    x, y = (Tensor.zeros(pool, (MIB // 4,)) for _ in range(2))
    following = Tensor.empty(pool, (MIB // 4,))
    x.copy_from(ones, stream=copy)
    compute.wait_for(copy.record())
    axpy(y, x, LONG, compute)
    worked = compute.record()
    following.copy_from(ones, stream=copy)  # the next step's input travels meanwhile
    copy.synchronize()
    assert not worked.done(), "the copy waited for the kernel"
    copy.wait_for(worked)
    result.copy_from(y, stream=copy)
    copy.synchronize()
    assert (result.numpy() == LONG).all()


def test_poison_finds_a_write_after_the_release(gpu, upstream):
    pool = MemoryPool(name="gpu", upstream=upstream, fill="poison")
    tensor = Tensor.empty(pool, (MIB // 4,))
    assert np.isnan(tensor.to_host()).all()
    stale = tensor.address
    tensor.release()
    upstream.fill(stale + 12345, 1, 0)
    with pytest.raises(WriteAfterFreeError, match="byte 12345"):
        pool.allocate(MIB)


def test_nothing_leaks(upstream):
    before = upstream.used_bytes()
    pool = MemoryPool(upstream=upstream)
    streams = [CudaStream("a"), CudaStream("b")]
    rng = np.random.default_rng(0)
    for step in range(2000):
        stream = streams[step % 2]
        with Tensor.zeros(pool, (int(rng.integers(1, 1 << 18)),), stream=stream) as tensor:
            tensor.used_on(streams[(step // 2) % 2])
    pool.synchronize()
    pool.trim()
    assert pool.stats().reserved_bytes == 0
    assert upstream.used_bytes() <= before + SLACK


def test_a_trace_through_our_pool_cupys_and_none(gpu, upstream):
    """All three serve it; ours from its free lists. How fast each is: benchmarks/pool.py."""
    sizes = [int(size) for size in np.random.default_rng(0).lognormal(14, 1, 200)]
    ticks = iter(range(10_000))
    pool = MemoryPool(upstream=upstream)
    results = [
        replay(sizes, allocator, window=4, clock=lambda: next(ticks))
        for allocator in (FromCudaPool(pool, CudaStream("compute")), FromCupy(gpu.ordinal), FromCudaMalloc(gpu.ordinal))
    ]
    gpu.cupy.cuda.runtime.deviceSynchronize()
    ours, theirs, none = results
    assert ours.reuse > 0.5 and none.reuse == 0
    assert theirs.peak_reserved_bytes >= theirs.peak_requested_bytes
