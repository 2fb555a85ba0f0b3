"""A CuPy without a GPU: the calls that `aie_tensor.memory.cuda` makes, with host memory as the device's.

Streams are queues. Nothing queued runs until somebody asks (`advance`) or waits (`synchronize`), so that a test decides
what has run when. Work that touches memory which was freed in the meantime fails as on a GPU: as an illegal address,
reported by a later call.
"""

import ctypes
from collections import deque
from types import SimpleNamespace

import numpy as np

OUT_OF_MEMORY, INVALID_VALUE, NO_DEVICE, ILLEGAL_ADDRESS = 2, 1, 100, 700
ALIGNMENT = 256


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class CompileException(Exception):
    pass


class Memory:
    """Allocations of one kind by address."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.runs = {}
        self.num_mallocs = self.num_frees = self.num_bad_frees = 0

    @property
    def used(self):
        return sum(nbytes for nbytes, _ in self.runs.values())

    def take(self, nbytes):
        if nbytes >= 1 << 64:
            raise OverflowError("Python int too large to convert to C size_t")
        if nbytes + self.used > self.capacity:
            raise CUDARuntimeError(OUT_OF_MEMORY, "cudaErrorMemoryAllocation: out of memory")
        store = np.full(nbytes + ALIGNMENT, 0xA5, np.uint8)
        address = -(-store.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.runs[address] = (nbytes, store)
        self.num_mallocs += 1
        return address

    def drop(self, address):
        if address not in self.runs:
            self.num_bad_frees += 1
            raise CUDARuntimeError(INVALID_VALUE, "cudaErrorInvalidValue: invalid argument")
        del self.runs[address]
        self.num_frees += 1

    def holds(self, address, nbytes):
        return any(start <= address and address + nbytes <= start + size for start, (size, _) in self.runs.items())


class FakeCupy:
    """What `import cupy` gives in the tests. `queues`: the work of each stream by its handle."""

    def __init__(self, capacity=64 << 20, num_devices=2):
        self.device_memory = Memory(capacity)
        self.pinned = Memory(capacity)
        self.num_devices = num_devices
        self.current_device = 0
        self.queues = {}
        self.fault = None
        self.copies = []  # sizes of the copies that were asked for
        self.num_events = 0
        self.num_launches = 0
        self.compile_error = None
        fake = self

        class Stream:
            null = None

            def __init__(self, non_blocking=False):
                self.ptr = len(fake.queues) + 1
                fake.queues[self.ptr] = self
                self.work = deque()
                self.num_queued = self.num_done = 0

            def queue(self, operation):
                self.work.append(operation)
                self.num_queued += 1

            def advance(self, count=None):
                """Run so many operations, all without a count."""
                while self.work and count != 0:
                    self.work.popleft()()
                    self.num_done += 1
                    count = None if count is None else count - 1

            def synchronize(self):
                self.advance()
                fake.check()

            def wait_event(self, event):
                stream, position = event.stream, event.position
                self.queue(lambda: stream.advance(max(0, position - stream.num_done)))

            def __enter__(self):
                fake.launch_stream.append(self)
                return self

            def __exit__(self, *_):
                fake.launch_stream.pop()

        class Event:
            def __init__(self, block=False, disable_timing=False):
                fake.num_events += 1
                self.stream = None

            def record(self, stream):
                self.stream, self.position = stream, stream.num_queued

            @property
            def done(self):
                fake.check()
                return self.stream.num_done >= self.position

            def synchronize(self):
                self.stream.advance(max(0, self.position - self.stream.num_done))
                fake.check()

        class UnownedMemory:
            def __init__(self, ptr, size, owner, device_id=-1):
                self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id

        class MemoryPointer:
            def __init__(self, mem, offset):
                self.mem, self.offset, self.ptr = mem, offset, mem.ptr + offset

        class RawModule:
            def __init__(self, code, options):
                assert 'extern "C" __global__ void find_others(' in code

            def compile(self):
                if fake.compile_error:
                    raise fake.compile_error

            def get_function(self, name):
                return {"find_others": fake.find_others, "axpy": fake.axpy}[name]

        self.launch_stream = []
        self.RawModule = RawModule
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError, memcpyDefault=4, memcpyDeviceToHost=2, hostAllocDefault=0,
            getDeviceCount=self.count_devices, getDevice=lambda: self.current_device, setDevice=self.set_device,
            malloc=self.device_memory.take, free=self.free,
            hostAlloc=lambda nbytes, flags: self.pinned.take(nbytes), freeHost=self.pinned.drop,
            memset=self.memset, memsetAsync=self.memset_async, memcpy=self.memcpy, memcpyAsync=self.memcpy_async,
            deviceSynchronize=self.synchronize, streamSynchronize=lambda ptr: self.stream(ptr).synchronize(),
            memGetInfo=lambda: (self.device_memory.capacity - self.device_memory.used, self.device_memory.capacity),
            deviceGetPCIBusId=lambda ordinal: f"0000:{ordinal:02X}:00.0",
        )  # fmt: skip
        self.cuda = SimpleNamespace(
            runtime=runtime, driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            Stream=Stream, Event=Event, UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer,
            compiler=SimpleNamespace(CompileException=CompileException), MemoryPool=self.own_pool,
        )  # fmt: skip
        Stream.null = Stream()
        self.queues[0] = Stream.null

    # Devices

    def count_devices(self):
        if self.num_devices == 0:
            raise CUDARuntimeError(NO_DEVICE, "cudaErrorNoDevice: no CUDA-capable device is detected")
        return self.num_devices

    def set_device(self, ordinal):
        self.current_device = ordinal

    def check(self):
        if self.fault:
            raise CUDARuntimeError(ILLEGAL_ADDRESS, f"cudaErrorIllegalAddress: {self.fault}")

    def synchronize(self):
        for stream in list(self.queues.values()):
            stream.advance()
        self.check()

    def stream(self, ptr):
        return self.queues[ptr]

    # Memory

    def free(self, address):
        self.synchronize()  # as cudaFree does
        self.device_memory.drop(address)

    def touch(self, address, nbytes, what):
        """False, and a fault, where `nbytes` at `address` are device memory no more. Host memory is not looked at."""
        return self.device_memory.holds(address, nbytes) or self.pinned.holds(address, nbytes)

    def memset(self, address, byte, nbytes):
        self.memset_async(address, byte, nbytes, 0)
        self.stream(0).advance()

    def memset_async(self, address, byte, nbytes, ptr):
        def run():
            if not self.touch(address, nbytes, "memset"):
                self.fault = f"memset of {nbytes} bytes"
                return
            ctypes.memset(address, byte, nbytes)

        self.check()
        self.stream(ptr).queue(run)

    def memcpy(self, target, source, nbytes, kind):
        self.synchronize()
        ctypes.memmove(target, source, nbytes)

    def memcpy_async(self, target, source, nbytes, kind, ptr):
        assert kind == 4
        sides = [address for address in (target, source) if self.touch(address, nbytes, "memcpy")]

        def run():
            if not all(self.touch(address, nbytes, "memcpy") for address in sides):
                self.fault = f"memcpy of {nbytes} bytes"
                return
            ctypes.memmove(target, source, nbytes)

        self.check()
        assert sides, "one side of a copy has to be known to CUDA"
        self.copies.append(nbytes)
        self.stream(ptr).queue(run)

    # Arrays and kernels

    def ndarray(self, shape, dtype, memptr, strides=None):
        """An array of the host on the "device's" bytes that keeps the owner as CuPy's does."""
        mem = memptr.mem
        view = SimpleNamespace(
            owner=mem,
            __array_interface__={"version": 3, "typestr": "|u1", "shape": (mem.size,), "data": (mem.ptr, False)},
        )
        return np.ndarray(shape, dtype, np.asarray(view), memptr.offset, strides)

    def find_others(self, grid, block, arguments):
        address, nbytes, byte, found = map(int, arguments)

        def run():
            others = np.flatnonzero(read(address, nbytes) != byte)
            if others.size:
                count_and_first = read(found, 16).view(np.uint64)
                count_and_first[0] += others.size
                count_and_first[1] = min(int(count_and_first[1]), others[0])

        self.launch(grid, block, run)

    def axpy(self, grid, block, arguments):
        y, x, a, count, rounds = arguments

        def run():
            for _ in range(rounds):
                read(int(y), int(count) * 4).view(np.float32)[...] += a * read(int(x), int(count) * 4).view(np.float32)

        self.launch(grid, block, run)

    def launch(self, grid, block, run):
        if not (grid[0] > 0 and block[0] > 0):
            raise CUDADriverError(INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        self.num_launches += 1
        self.launch_stream[-1].queue(run)

    def own_pool(self):
        """CuPy's pool, as far as the replay asks it: equal sizes are reused."""
        fake, cached = self, {}

        class Pool:
            total = 0

            def malloc(self, nbytes):
                rounded = -(-nbytes // 512) * 512
                if not cached.get(rounded):
                    cached.setdefault(rounded, []).append(fake.device_memory.take(rounded))
                    Pool.total += rounded
                address = cached[rounded].pop()
                memory = fake.cuda.UnownedMemory(address, rounded, Returned(cached[rounded], address))
                return fake.cuda.MemoryPointer(memory, 0)

            def total_bytes(self):
                return Pool.total

        return Pool()


class Returned:
    def __init__(self, cached, address):
        self.cached, self.address = cached, address

    def __del__(self):
        self.cached.append(self.address)


def read(address, nbytes):
    """The bytes at an address, as an array."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
