"""CuPy as the door to the CUDA runtime: opened at first use, so that machines without it never notice.

Only the runtime's own calls are used (cudaMalloc, cudaMemcpyAsync, streams, events). CuPy's memory pool stays out of
it: a pool beneath ours would keep memory that ours believes it has returned.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aie_tensor.errors import CudaError, EnvironmentLacksError, InvalidInputError

__all__ = ["REMEDY", "Device", "load_cupy"]

REMEDY = "Install it with: pip install 'aie[gpu]'"
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, and CUDA_ERROR_OUT_OF_MEMORY of the driver


def load_cupy() -> Any:
    """The module. EnvironmentLacksError when it is not installed or its libraries do not load."""
    try:
        return importlib.import_module("cupy")
    except ModuleNotFoundError:
        raise EnvironmentLacksError(f"CUDA memory needs CuPy, which is not installed. {REMEDY}") from None
    except ImportError as error:
        raise EnvironmentLacksError(f"CuPy is installed but does not load: {error}. {REMEDY}") from error


class Device:
    """One GPU. EnvironmentLacksError where there is no CuPy, driver or GPU; InvalidInputError for a number too high."""

    def __init__(self, ordinal: int = 0) -> None:
        if isinstance(ordinal, bool) or not isinstance(ordinal, int) or ordinal < 0:
            raise InvalidInputError(f"a device is a number from 0, not {ordinal!r}", param="device")
        self.cupy = load_cupy()
        # Memory, streams and events report by the first kind, kernels by the second.
        self.faults = (self.cupy.cuda.runtime.CUDARuntimeError, self.cupy.cuda.driver.CUDADriverError)
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        try:
            count = self.cupy.cuda.runtime.getDeviceCount()
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise EnvironmentLacksError(
                f"CUDA finds no usable GPU: {error}. Install NVIDIA's driver, or use the CPU pool."
            ) from error
        if count == 0:
            raise EnvironmentLacksError("this machine has no CUDA GPU. Use the CPU pool.")
        if ordinal >= count:
            raise InvalidInputError(f"there is no device {self.name}: this machine has {count}", param="device")

    @classmethod
    def named(cls, name: str) -> "Device":
        """The device that a pool or tensor calls "cuda:0"."""
        kind, _, ordinal = name.partition(":")
        assert kind == "cuda" and ordinal.isdigit(), name
        return cls(int(ordinal))

    @contextmanager
    def current(self) -> Iterator[Any]:
        """Inside, the runtime's calls of this thread go to this device. MemoryError where the device has none left,
        which is what the pool's ladder waits for; CudaError for anything else that CUDA reports."""
        runtime = self.cupy.cuda.runtime
        try:
            previous = runtime.getDevice()
            if previous != self.ordinal:
                runtime.setDevice(self.ordinal)
            try:
                yield runtime
            finally:
                if previous != self.ordinal:
                    runtime.setDevice(previous)
        except self.faults as error:
            if error.status == OUT_OF_MEMORY:
                raise MemoryError(f"{self.name}: {error}") from error
            raise CudaError(
                f"{self.name}: {error}. CUDA reports the fault of a kernel at some later call: "
                "CUDA_LAUNCH_BLOCKING=1 names the call itself."
            ) from error
