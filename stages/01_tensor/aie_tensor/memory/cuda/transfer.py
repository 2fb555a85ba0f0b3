"""Bytes between host and device, or within one, in the order of a stream."""

from typing import Any

from aie_tensor.layout import Layout
from aie_tensor.memory.cuda.runtime import Device
from aie_tensor.memory.cuda.streams import CudaStream

__all__ = ["as_cupy", "copy", "fill"]


def copy(
    device: Device, target: int, target_layout: Layout, source: int, source_layout: Layout, stream: CudaStream | None
) -> None:
    """Copy every element between two layouts of one shape; the addresses are those of the first elements.

    Which side is where CUDA tells by the address. One copy per run without a gap on both sides: one in all for
    contiguous data, one per row for a cut-out. Without `stream` this waits for all work of the device, on whatever
    stream, and returns when the bytes have arrived; with it, as soon as the copies are queued (memory that is not
    pinned may make it wait nevertheless).
    """
    assert target_layout.shape == source_layout.shape, (target_layout, source_layout)
    if target_layout.num_elements == 0:
        return
    run = min(target_layout.run_length, source_layout.run_length)
    nbytes = run * target_layout.itemsize
    handle = stream.handle if stream is not None else 0
    with device.current() as runtime:
        if stream is None:
            runtime.deviceSynchronize()
        for to, origin in zip(target_layout.offsets(run), source_layout.offsets(run), strict=True):
            runtime.memcpyAsync(target + to, source + origin, nbytes, runtime.memcpyDefault, handle)
        if stream is None:
            runtime.streamSynchronize(0)


def fill(device: Device, address: int, nbytes: int, byte: int, stream: CudaStream | None) -> None:
    """Set every byte; queued on `stream`, or without one after all work of the device, and done when this returns."""
    if nbytes == 0:
        return
    with device.current() as runtime:
        if stream is None:
            runtime.deviceSynchronize()
        runtime.memsetAsync(address, byte, nbytes, stream.handle if stream is not None else 0)
        if stream is None:
            runtime.streamSynchronize(0)


def as_cupy(device: Device, address: int, dtype: Any, layout: Layout, block: tuple[int, int], owner: object) -> Any:
    """A `cupy.ndarray` on these bytes, nothing copied. `block`: address and length of the whole run that `address`
    lies in; `owner` is kept for as long as the array or any slice of it exists."""
    cupy = device.cupy
    start, nbytes = block
    memory = cupy.cuda.UnownedMemory(start, nbytes, owner, device.ordinal)
    pointer = cupy.cuda.MemoryPointer(memory, address - start)
    return cupy.ndarray(layout.shape, dtype, pointer, strides=layout.strides)
