"""The project's own CUDA kernels (`kernels.cu`), compiled by NVRTC when one is first called."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np

from aie_tensor.errors import CudaError, EnvironmentLacksError
from aie_tensor.memory.cuda.runtime import REMEDY, Device

__all__ = ["NVRTC_OPTIONS", "SOURCE", "Kernels"]

SOURCE = Path(__file__).parent / "kernels.cu"
NVRTC_OPTIONS = ("--std=c++14",)

THREADS = 256  # per thread block
MAX_GRID = 1024  # thread blocks: enough to keep any GPU's memory busy; each thread then strides through the rest


class Kernels:
    """One device's compiled kernels. Thread-safe."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._module: Any = None
        self._found: Any = None  # sixteen bytes on the device for the answer of `find_others`

    def find_others(self, address: int, nbytes: int, byte: int) -> tuple[int, int] | None:
        """(how many of `nbytes` bytes are not `byte`, offset of the first of them); None when all are. Waits for the
        whole device, so that writes still queued on any stream count. CudaError where the kernels do not compile."""
        with self._lock, self._device.current() as runtime:
            if self._found is None:
                self._found = _Scratch(runtime)
            runtime.deviceSynchronize()
            runtime.memset(self._found.address, 0, 8)
            runtime.memset(self._found.address + 8, 0xFF, 8)
            arguments = (np.uint64(address), np.uint64(nbytes), np.uint8(byte), np.uint64(self._found.address))
            self._launch("find_others", -(-nbytes // 16), self._device.cupy.cuda.Stream.null, arguments)
            answer = np.empty(2, dtype=np.uint64)
            runtime.memcpy(answer.ctypes.data, self._found.address, answer.nbytes, runtime.memcpyDeviceToHost)
        count, first = map(int, answer)
        return (count, first) if count else None

    def axpy(self, y: int, x: int, a: float, num_elements: int, *, rounds: int, stream: Any) -> None:
        """y := a·x + y on float32 at these addresses, `rounds` times, queued on a `cupy.cuda.Stream`."""
        arguments = (np.uint64(y), np.uint64(x), np.float32(a), np.uint64(num_elements), np.int32(rounds))
        with self._lock, self._device.current():
            self._launch("axpy", num_elements, stream, arguments)

    def _launch(self, name: str, num_threads: int, stream: Any, arguments: tuple[Any, ...]) -> None:
        if self._module is None:
            self._module = self._compiled()
        kernel = self._module.get_function(name)
        grid = min(MAX_GRID, max(1, -(-num_threads // THREADS)))
        with stream:
            kernel((grid,), (THREADS,), arguments)

    def _compiled(self) -> Any:
        cupy = self._device.cupy
        try:
            module = cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=NVRTC_OPTIONS)
            module.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise CudaError(f"{SOURCE.name} does not compile for {self._device.name}: {error}") from error
        except RuntimeError as error:
            if isinstance(error, self._device.faults):
                raise
            raise EnvironmentLacksError(f"CuPy cannot compile CUDA here: {error}. {REMEDY}") from error  # no NVRTC
        return module


class _Scratch:
    """Sixteen bytes on the current device, taken from the runtime itself: our pool may be full when they are needed."""

    def __init__(self, runtime: Any) -> None:
        self._free = runtime.free
        self.address: int = runtime.malloc(16)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end CUDA may be gone, and with it the memory
            self._free(self.address)
