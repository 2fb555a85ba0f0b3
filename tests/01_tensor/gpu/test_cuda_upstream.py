"""The pool on a GPU's memory, with a made-up CuPy: reservation, ladder, streams, poison, errors. No GPU needed."""

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from aie_tensor import AieError, EnvironmentLacksError, InvalidInputError, MemoryPool, OutOfMemoryError
from aie_tensor.errors import CudaError, WriteAfterFreeError
from aie_tensor.layout import Layout
from aie_tensor.memory.cuda import CudaStream, CudaUpstream, PinnedUpstream
from aie_tensor.memory.cuda.transfer import as_cupy
from aie_tensor.memory.streams import Event, Stream

MIB = 1 << 20


def test_without_cupy_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for make in (CudaUpstream, PinnedUpstream, lambda: CudaStream("copy")):
        with pytest.raises(EnvironmentLacksError, match=r"pip install 'aie\[gpu\]'") as lacks:
            make()
        assert lacks.value.exit_code == 3


def test_without_a_gpu_the_error_says_so(make_fake):
    make_fake(num_devices=0)
    with pytest.raises(EnvironmentLacksError, match="no CUDA-capable device"):
        CudaUpstream()


@pytest.mark.parametrize("device", [2, -1, True, "cuda:0", 0.0])
def test_devices_that_do_not_exist(fake, device):
    with pytest.raises(InvalidInputError) as refused:
        CudaUpstream(device)
    assert refused.value.param == "device"


def test_a_region_is_device_memory_and_goes_back(fake, peek):
    upstream = CudaUpstream()
    region = upstream.reserve(1000, zeroed=True)
    assert (upstream.device, upstream.granularity, region.host, region.address % 64) == ("cuda:0", 512, None, 0)
    assert not peek(region.address, 1000).any()
    assert upstream.used_bytes() == fake.device_memory.used == 1000
    upstream.give_back(region)
    assert fake.device_memory.used == 0
    del region
    assert (fake.device_memory.num_frees, fake.device_memory.num_bad_frees) == (1, 0)  # not twice


def test_a_region_that_is_dropped_is_freed(fake):
    region = CudaUpstream().reserve(1000, zeroed=False)
    del region
    gc.collect()
    assert fake.device_memory.used == 0


def test_calls_go_to_the_device_and_leave_the_callers_as_it_was(fake, monkeypatch):
    used = []
    monkeypatch.setattr(
        fake.cuda.runtime, "malloc", lambda n: used.append(fake.current_device) or fake.device_memory.take(n)
    )
    upstream = CudaUpstream(1)
    upstream.reserve(512, zeroed=False)
    assert (upstream.device, used, fake.current_device) == ("cuda:1", [1], 0)


def test_lack_of_memory_is_what_the_pool_expects(make_fake):
    make_fake(capacity=1 << 10)
    for nbytes in (1 << 11, 1 << 70):
        with pytest.raises(MemoryError):
            CudaUpstream().reserve(nbytes, zeroed=False)


def test_other_faults_are_typed(fake):
    upstream = CudaUpstream()
    fake.fault = "somewhere"
    with pytest.raises(CudaError, match="cuda:0: cudaErrorIllegalAddress: somewhere") as error:
        upstream.fill(0, 1, 0)
    assert isinstance(error.value, AieError) and "CUDA_LAUNCH_BLOCKING" in str(error.value)


def test_capacity_and_the_processes_share(fake, monkeypatch):
    upstream = CudaUpstream()
    assert (upstream.capacity_bytes(), upstream.process_bytes()) == (64 * MIB, None)  # no NVML
    monkeypatch.setattr("os.getpid", lambda: 7)
    monkeypatch.setitem(sys.modules, "pynvml", nvml := FakeNvml({6: 1, 7: 12345}))
    assert (upstream.process_bytes(), nvml.asked, nvml.open) == (12345, "0000:00:00.0", 0)
    nvml.used = {6: 1}
    assert upstream.process_bytes() is None
    nvml.used = {7: None}
    assert upstream.process_bytes() is None
    nvml.fails = True
    assert (upstream.process_bytes(), nvml.open) == (None, 0)


class FakeNvml:
    """NVIDIA's management library for one GPU: process → bytes."""

    class NVMLError(Exception):
        pass

    def __init__(self, used):
        self.used, self.open, self.asked, self.fails = used, 0, None, False

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByPciBusId(self, bus_id):
        self.asked = bus_id
        return "handle"

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if self.fails:
            raise self.NVMLError
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.used.items()]


def test_the_pool_reuses_and_returns_everything(fake):
    pool = MemoryPool(name="gpu", upstream=CudaUpstream())
    blocks = [pool.allocate(size) for size in (1000, 5000, 3 * MIB)]
    assert (pool.device, pool.stats().reserved_bytes) == ("cuda:0", fake.device_memory.used)
    for block in blocks:
        block.release()
    num_mallocs = fake.device_memory.num_mallocs
    for size in (1000, 5000, 3 * MIB):
        pool.allocate(size).release()
    assert fake.device_memory.num_mallocs == num_mallocs
    pool.trim()
    assert (pool.stats().reserved_bytes, fake.device_memory.used) == (0, 0)


def test_exact_blocks_are_zeroed_and_go_back_at_once(fake, peek):
    pool = MemoryPool(upstream=CudaUpstream())
    block = pool.allocate_exact(5 * 512 + 1)
    assert (block.block_bytes, peek(block.address, block.block_bytes).any()) == (6 * 512, False)
    block.release()
    assert fake.device_memory.used == 0


def test_the_ladder_frees_cached_memory_before_it_refuses(make_fake):
    fake = make_fake(capacity=8 * MIB)
    pool = MemoryPool(upstream=CudaUpstream())
    for _ in range(2):
        pool.allocate(4 * MIB).release()
    big = pool.allocate(8 * MIB)  # only if the cached 4 MiB went back
    with pytest.raises(OutOfMemoryError):
        pool.allocate(4 * MIB)
    assert pool.stats().live_bytes == fake.device_memory.used == 8 * MIB
    big.release()
    pool.allocate(4 * MIB).release()


def test_streams_and_events_are_what_the_pool_knows(fake):
    stream = CudaStream("compute")
    assert isinstance(stream, Stream) and isinstance(stream.record(), Event)
    assert (stream.name, stream.device, hash(stream) == hash(stream)) == ("compute", "cuda:0", True)
    stream.raw.queue(lambda: None)
    event = stream.record()
    assert not event.done()
    event.wait()
    assert event.done()


def test_events_are_recorded_again_instead_of_made_anew(fake):
    stream = CudaStream("compute")
    held = [stream.record() for _ in range(3)]
    assert fake.num_events == 3
    del held
    for _ in range(100):
        stream.record()
    assert fake.num_events == 3


def test_a_reused_event_never_answers_for_an_older_one(fake):
    stream = CudaStream("compute")
    old = stream.record()
    assert old.done()
    stream.raw.queue(lambda: None)
    new = stream.record()
    assert (old.done(), new.done()) == (True, False)


def test_one_stream_waits_for_another_without_the_host(fake):
    first, second = CudaStream("copy"), CudaStream("compute")
    order = []
    first.raw.queue(lambda: order.append("copy"))
    second.wait_for(first.record())
    second.raw.queue(lambda: order.append("compute"))
    assert order == []
    second.synchronize()
    assert order == ["copy", "compute"]


def test_a_stream_of_the_caller_can_be_wrapped(fake):
    raw = fake.cuda.Stream(non_blocking=True)
    assert CudaStream("mine", raw=raw).handle == raw.ptr


def test_a_block_changes_streams_only_after_its_event(fake):
    pool = MemoryPool(upstream=CudaUpstream(), segment_bytes=MIB)
    first, second = CudaStream("compute"), CudaStream("copy")
    block = pool.allocate(MIB, stream=first)
    address = block.address
    first.raw.queue(lambda: None)  # work on the block
    block.release()
    same = pool.allocate(MIB, stream=first)
    assert same.address == address  # the same stream: order is enough
    same.release()
    other = pool.allocate(MIB, stream=second)
    assert other.address != address
    first.raw.advance()
    assert pool.allocate(MIB, stream=second).address == address


def test_a_block_used_on_a_second_stream_is_pending(fake):
    pool = MemoryPool(upstream=CudaUpstream())
    compute, copy = CudaStream("compute"), CudaStream("copy")
    block = pool.allocate(MIB, stream=compute)
    block.used_on(copy)
    copy.raw.queue(lambda: None)
    block.release()
    assert pool.stats().pending_bytes == MIB
    copy.raw.advance()
    compute.raw.advance()
    assert (pool.stats().pending_bytes, pool.stats().cached_bytes) == (0, MIB)


def test_after_synchronizing_everything_can_be_returned(fake):
    pool = MemoryPool(upstream=CudaUpstream())
    compute, copy = CudaStream("compute"), CudaStream("copy")
    block = pool.allocate(MIB, stream=compute)
    block.used_on(copy)
    for stream in (compute, copy):
        stream.raw.queue(lambda: None)
    block.release()
    pool.synchronize()  # waits for both streams, although only the second makes the block pending
    assert (pool.trim(), fake.device_memory.used) == (MIB, 0)


def test_waiting_for_streams_is_a_rung_of_the_ladder(make_fake):
    make_fake(capacity=MIB)
    pool = MemoryPool(upstream=CudaUpstream())
    compute, copy = CudaStream("compute"), CudaStream("copy")
    block = pool.allocate(MIB, stream=compute)
    block.used_on(copy)
    copy.raw.queue(lambda: None)
    block.release()
    pool.allocate(MIB, stream=copy).release()


def test_find_others(fake, peek):
    upstream = CudaUpstream()
    region = upstream.reserve(100, zeroed=False)
    upstream.fill(region.address, 100, 0xFF)
    assert upstream.find_others(region.address, 100, 0xFF) is None
    peek(region.address, 100)[[70, 93]] = 1
    assert upstream.find_others(region.address, 100, 0xFF) == (2, 70)
    assert upstream.find_others(region.address, 70, 0xFF) is None
    assert fake.num_launches == 3
    upstream.give_back(region)
    del upstream
    gc.collect()
    assert fake.device_memory.used == 0  # the sixteen bytes of the answer, too


@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        ("CompileException", CudaError, r"kernels.cu does not compile for cuda:0: line 1"),
        ("RuntimeError", EnvironmentLacksError, r"cannot compile CUDA here: line 1.*aie\[gpu\]"),  # no libnvrtc
        ("CUDADriverError", CudaError, "cuda:0: line 1"),
    ],
)
def test_kernels_that_cannot_be_had_are_typed_errors(fake, raised, error, text):
    fake.compile_error = {
        "CompileException": fake.cuda.compiler.CompileException("line 1"),
        "RuntimeError": RuntimeError("line 1"),
        "CUDADriverError": fake.cuda.driver.CUDADriverError(700, "line 1"),
    }[raised]
    upstream = CudaUpstream()
    region = upstream.reserve(64, zeroed=True)
    with pytest.raises(error, match=text):
        upstream.find_others(region.address, 64, 0)
    fake.compile_error = None
    assert upstream.find_others(region.address, 64, 0) is None  # asked again, compiled again


def test_poison_finds_a_write_after_the_release(fake, peek):
    pool = MemoryPool(upstream=CudaUpstream(), fill="poison")
    block = pool.allocate(4096, owner="hidden states")
    address = block.address
    assert np.isnan(peek(address, 4096).view(np.float32)).all()
    block.release()
    pool.allocate(4096).release()
    peek(address, 4096)[17] = 0
    with pytest.raises(WriteAfterFreeError, match=r"1 of 4096 bytes .* byte 17"):
        for _ in range(MIB // 4096 + 1):  # the block's turn comes within one round of its segment
            pool.allocate(4096)
    pool.allocate(4096)  # the pool goes on


def test_zero_fill(fake, peek):
    pool = MemoryPool(upstream=CudaUpstream(), fill="zero")
    block = pool.allocate(4096)
    peek(block.address, 4096)[...] = 3
    block.release()
    assert not peek(pool.allocate(4096).address, 4096).any()


def test_pinned_memory_is_the_hosts(fake):
    pool = MemoryPool(name="pinned", upstream=PinnedUpstream())
    block = pool.allocate(4096)
    block.array(np.float32, 1024)[...] = 3
    assert (pool.device, fake.pinned.used, fake.device_memory.used) == ("cpu", pool.stats().reserved_bytes, 0)
    assert not pool.allocate_exact(100).array(np.uint8, 100).any()
    block.release()
    pool.trim()
    gc.collect()
    pool.trim()
    assert fake.pinned.used == 0


def test_pinning_too_much_is_an_out_of_memory_error(make_fake):
    make_fake(capacity=MIB)
    pool = MemoryPool(upstream=PinnedUpstream())
    with pytest.raises(OutOfMemoryError):
        pool.allocate(4 * MIB)


def test_the_made_up_cupy_has_nothing_that_the_real_one_lacks(made_up):
    """Runs wherever CuPy is installed; needs no GPU."""
    real = pytest.importorskip("cupy", reason="CuPy is not installed")
    for name in vars(made_up.cuda.runtime):
        assert hasattr(real.cuda.runtime, name), name
    members = {
        "Stream": ("null", "synchronize", "wait_event", "__enter__"),
        "Event": ("record", "done", "synchronize"),
        "UnownedMemory": ("ptr", "size"),
        "MemoryPointer": ("mem", "ptr"),
        "MemoryPool": ("malloc", "total_bytes"),
    }
    for kind, names in members.items():
        assert [name for name in names if not hasattr(getattr(real.cuda, kind), name)] == []
    assert real.cuda.Stream.null.ptr == 0
    assert hasattr(real.RawModule, "compile") and hasattr(real.RawModule, "get_function")
    assert real.ndarray and real.cuda.compiler.CompileException and real.cuda.driver.CUDADriverError


def test_an_array_of_the_real_cupy_keeps_the_owner():
    """CuPy's array objects can be made without a GPU, as long as nobody reads them."""
    real = pytest.importorskip("cupy", reason="CuPy is not installed")
    owner = Owner()
    alive = weakref.ref(owner)
    device = SimpleNamespace(cupy=real, ordinal=0)
    layout = Layout((2, 3), (4, 8), 4, offset=64)
    array = as_cupy(device, 0x7000_0040, np.dtype(np.float32), layout, (0x7000_0000, 1024), owner)
    assert (array.data.ptr, array.shape, array.strides, array.dtype) == (0x7000_0040, (2, 3), (4, 8), np.float32)
    part = array[1:]
    del owner, array
    gc.collect()
    assert alive() is not None and part.data.ptr == 0x7000_0044
    del part
    gc.collect()
    assert alive() is None


class Owner:
    """What keeps a block."""
