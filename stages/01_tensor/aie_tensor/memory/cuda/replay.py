"""The allocators of `memory/replay.py` on a GPU: our pool, CuPy's pool, and cudaMalloc each time.

    replay(sizes, FromCudaPool(MemoryPool(upstream=CudaUpstream())), window=4, clock=time.perf_counter)

The loans are CuPy arrays; they can be written as NumPy's can, but a write is only queued. So `touch_us` of a replay is
the time to queue one kernel, and says nothing of the memory, which on a GPU has no pages to fault in.
"""

from typing import Any

import numpy as np

from aie_tensor.layout import Layout
from aie_tensor.memory.cuda.runtime import Device
from aie_tensor.memory.cuda.streams import CudaStream
from aie_tensor.memory.cuda.transfer import as_cupy
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.memory.replay import Loan

__all__ = ["FromCudaMalloc", "FromCudaPool", "FromCupy"]


class FromCudaPool:
    """`MemoryPool` on a GPU, with a reference count and a view for each loan."""

    def __init__(self, pool: MemoryPool, stream: CudaStream | None = None, name: str = "MemoryPool") -> None:
        self.name = name
        self.pool = pool
        self._stream = stream
        self._device = Device.named(pool.device)

    def take(self, nbytes: int) -> Loan:
        block = self.pool.allocate(nbytes, owner="replay", stream=self._stream)
        return Loan(_bytes(self._device, block.address, nbytes, block.hold()), block.release)

    def reserved_bytes(self) -> int | None:
        return self.pool.stats().reserved_bytes

    def num_reuses(self) -> int:
        return self.pool.stats().num_reuses


class FromCupy:
    """CuPy's own pool: 512-byte sizes, best fit, split and merged. Memory returns when the last array on it goes."""

    name = "CuPy's pool"

    def __init__(self, device: int = 0) -> None:
        self._device = Device(device)
        self._pool = self._device.cupy.cuda.MemoryPool()
        self._num_reuses = 0

    def take(self, nbytes: int) -> Loan:
        before = self._pool.total_bytes()
        with self._device.current():
            pointer = self._pool.malloc(nbytes)
            array = self._device.cupy.ndarray((nbytes,), np.uint8, pointer)
        self._num_reuses += self._pool.total_bytes() == before  # CuPy does not count; nothing new was asked of CUDA
        return Loan(array, lambda: None)

    def reserved_bytes(self) -> int | None:
        return int(self._pool.total_bytes())

    def num_reuses(self) -> int:
        return self._num_reuses


class FromCudaMalloc:
    """cudaMalloc and cudaFree each time: what every pool on a GPU is there to avoid."""

    name = "cudaMalloc"

    def __init__(self, device: int = 0) -> None:
        self._device = Device(device)
        self._held = 0

    def take(self, nbytes: int) -> Loan:
        with self._device.current() as runtime:
            address = runtime.malloc(nbytes)
        self._held += nbytes
        return Loan(_bytes(self._device, address, nbytes, None), lambda: self._give_back(address, nbytes))

    def _give_back(self, address: int, nbytes: int) -> None:
        with self._device.current() as runtime:
            runtime.free(address)
        self._held -= nbytes

    def reserved_bytes(self) -> int | None:
        return self._held

    def num_reuses(self) -> int:
        return 0


def _bytes(device: Device, address: int, nbytes: int, owner: object) -> Any:
    return as_cupy(device, address, np.uint8, Layout.contiguous((nbytes,), 1), (address, nbytes), owner)
