"""What one process uses of a GPU, asked of NVIDIA's management library where its Python binding is installed."""

import importlib
import os
from typing import Any

__all__ = ["process_bytes"]


def process_bytes(bus_id: str, pid: int | None = None) -> int | None:
    """Bytes that process `pid` (this one) uses of the GPU at PCI address `bus_id`; None where nobody tells."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    pid = os.getpid() if pid is None else pid
    try:
        nvml.nvmlInit()  # counted by the library: each needs its shutdown
        try:
            # By address, since NVML counts GPUs that CUDA_VISIBLE_DEVICES hides.
            handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id)
            used = [each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if each.pid == pid]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None
    return int(used[0]) if used and used[0] is not None else None
