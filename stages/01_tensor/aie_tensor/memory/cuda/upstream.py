"""Where a pool on a GPU gets its memory: cudaMalloc for the device, cudaHostAlloc for what travels to it."""

import contextlib
import ctypes
import mmap

import psutil

from aie_tensor.memory.cuda.kernels import Kernels
from aie_tensor.memory.cuda.nvml import process_bytes
from aie_tensor.memory.cuda.runtime import Device
from aie_tensor.memory.host import bytes_at, find_others
from aie_tensor.memory.upstream import Region

__all__ = ["CudaUpstream", "PinnedUpstream"]

CUDA_GRANULARITY = 512  # bytes; cudaMalloc itself aligns to at least 256


class _Owned:
    """An address that goes back to CUDA by `free`, at the latest when the last holder of the object goes."""

    def __init__(self, device: Device, address: int, *, pinned: bool) -> None:
        self._device = device
        self._address = address
        self._pinned = pinned

    def free(self) -> None:
        address, self._address = self._address, 0
        if address:
            with self._device.current() as runtime:
                (runtime.freeHost if self._pinned else runtime.free)(address)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end CUDA may be gone, and with it the memory
            self.free()


class CudaUpstream:
    """Raw memory of one GPU. EnvironmentLacksError (exit code 3) without CuPy or a GPU.

    cudaMalloc takes microseconds to milliseconds and cudaFree waits for the whole device: why a pool stands in front.
    """

    def __init__(self, device: int = 0) -> None:
        self._device = Device(device)
        self._kernels = Kernels(self._device)

    @property
    def device(self) -> str:
        """ "cuda:0"."""
        return self._device.name

    @property
    def granularity(self) -> int:
        """512 bytes."""
        return CUDA_GRANULARITY

    def reserve(self, nbytes: int, *, zeroed: bool) -> Region:
        """`nbytes` > 0 bytes of the device. MemoryError where it has none left."""
        assert nbytes > 0, nbytes
        with self._device.current() as runtime:
            try:
                address = runtime.malloc(nbytes)
            except OverflowError as error:
                raise MemoryError(f"{self.device}: {nbytes} bytes are beyond any address space") from error
        region = Region(address, nbytes, _Owned(self._device, address, pinned=False), None)
        if zeroed:
            self.fill(address, nbytes, 0)
        return region

    def give_back(self, region: Region) -> None:
        """cudaFree."""
        region.keep_alive.free()

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set every byte. Waits for the whole device before and after, since streams that do not follow the default
        stream could otherwise still read the old bytes or miss the new ones; the fill modes are for finding faults."""
        with self._device.current() as runtime:
            runtime.deviceSynchronize()
            runtime.memset(address, byte, nbytes)
            runtime.deviceSynchronize()

    def find_others(self, address: int, nbytes: int, byte: int) -> tuple[int, int] | None:
        """(how many bytes are not `byte`, offset of the first of them); None when all are: has anybody written to a
        poisoned block? Waits for the whole device."""
        return self._kernels.find_others(address, nbytes, byte)

    def capacity_bytes(self) -> int:
        """The device's whole memory."""
        with self._device.current() as runtime:
            return int(runtime.memGetInfo()[1])

    def used_bytes(self) -> int:
        """What all processes together use of the device."""
        with self._device.current() as runtime:
            free, total = runtime.memGetInfo()
            return int(total - free)

    def process_bytes(self) -> int | None:
        """What this process uses, its CUDA context and kernels included; None where NVML (nvidia-ml-py) cannot tell,
        e.g. in a container with process numbers of its own."""
        with self._device.current() as runtime:
            bus_id = runtime.deviceGetPCIBusId(self._device.ordinal)
        return process_bytes(bus_id)


class PinnedUpstream:
    """Host memory that the system may not page out, so that a GPU copies from and to it while both go on working.

    For staging buffers only: pinning takes memory away from everybody else on the machine.
    """

    def __init__(self, device: int = 0) -> None:
        self._device = Device(device)

    @property
    def device(self) -> str:
        """ "cpu": plain code reads and writes it."""
        return "cpu"

    @property
    def granularity(self) -> int:
        """A page."""
        return mmap.PAGESIZE

    def reserve(self, nbytes: int, *, zeroed: bool) -> Region:
        """`nbytes` > 0 bytes. MemoryError where the system refuses to pin so many."""
        assert nbytes > 0, nbytes
        with self._device.current() as runtime:
            try:
                address = runtime.hostAlloc(nbytes, runtime.hostAllocDefault)
            except OverflowError as error:
                raise MemoryError(f"{nbytes} bytes are beyond any address space") from error
        host = bytes_at(address, nbytes)
        if zeroed:
            host[...] = 0
        return Region(address, nbytes, _Owned(self._device, address, pinned=True), host)

    def give_back(self, region: Region) -> None:
        """cudaFreeHost."""
        region.keep_alive.free()

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set every byte, by the CPU."""
        ctypes.memset(address, byte, nbytes)

    def find_others(self, address: int, nbytes: int, byte: int) -> tuple[int, int] | None:
        """As on the host."""
        return find_others(address, nbytes, byte)

    def capacity_bytes(self) -> int:
        """The machine's memory."""
        return int(psutil.virtual_memory().total)

    def process_bytes(self) -> int | None:
        """The process' resident memory, in which pinned pages count."""
        return int(psutil.Process().memory_info().rss)
