"""The pool on a GPU: memory, streams and events of the CUDA runtime, reached through CuPy at first use.

    from aie_tensor.memory.cuda import CudaStream, CudaUpstream

    pool = MemoryPool(name="gpu", upstream=CudaUpstream())
    compute, copy = CudaStream("compute"), CudaStream("copy")

Importing this needs neither CuPy nor a GPU; making one of these objects does, and says how to get it otherwise.

    runtime.py    the door: device, errors
    kernels.*     our own CUDA C: find the bytes that are not the poison
    upstream.py   device memory and pinned host memory for `MemoryPool`
    streams.py    order
    transfer.py   copies
    replay.py     the allocators of `memory/replay.py`, on the GPU
"""

from aie_tensor.memory.cuda.runtime import Device
from aie_tensor.memory.cuda.streams import CudaEvent, CudaStream
from aie_tensor.memory.cuda.upstream import CudaUpstream, PinnedUpstream

__all__ = ["CudaEvent", "CudaStream", "CudaUpstream", "Device", "PinnedUpstream"]
