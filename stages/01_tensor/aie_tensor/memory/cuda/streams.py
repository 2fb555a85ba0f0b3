"""CUDA's streams and events in the shape that the pool knows (`memory/streams.py`).

The pool records an event for each block that leaves its stream, some thousand per second under load. Creating one costs
a call into the driver, so events that nobody looks at any more are kept and recorded again.
"""

from collections import deque
from typing import Any

from aie_tensor.memory.cuda.runtime import Device

__all__ = ["CudaEvent", "CudaStream"]

MAX_IDLE_EVENTS = 256  # per stream; beyond that the oldest are destroyed


class CudaEvent:
    """A point in a stream's work."""

    __slots__ = ("_device", "_done", "_idle", "_raw")

    def __init__(self, device: Device, raw: Any, idle: deque[Any]) -> None:
        self._device = device
        self._raw = raw
        self._idle = idle
        self._done = False

    def done(self) -> bool:
        """True once all work queued before it has run. Never blocks. CudaError when that work failed."""
        if not self._done:
            with self._device.current():
                self._done = bool(self._raw.done)
        return self._done

    def wait(self) -> None:
        """Block this thread, not the device, until it is done. CudaError when the work failed."""
        with self._device.current():
            self._raw.synchronize()
        self._done = True

    @property
    def raw(self) -> Any:
        """The `cupy.cuda.Event`; good for as long as this object is kept."""
        return self._raw

    def __del__(self) -> None:
        self._idle.append(self._raw)  # atomic: this may run inside any other code


class CudaStream:
    """A queue of work on a GPU. `raw` wraps a `cupy.cuda.Stream` that exists already.

    A new one does not wait for CUDA's default stream nor the other way round; order between streams comes from events.
    """

    def __init__(self, name: str, device: int = 0, *, raw: Any = None) -> None:
        self._device = Device(device)
        self._name = name
        self._idle: deque[Any] = deque(maxlen=MAX_IDLE_EVENTS)
        if raw is None:
            with self._device.current():
                raw = self._device.cupy.cuda.Stream(non_blocking=True)
        self.raw = raw  # a context manager: `with stream.raw:` sends CuPy's work there

    @property
    def name(self) -> str:
        """For people: "copy", "compute"."""
        return self._name

    @property
    def device(self) -> str:
        """ "cuda:0"."""
        return self._device.name

    @property
    def handle(self) -> int:
        """The cudaStream_t, for calls of the runtime."""
        return int(self.raw.ptr)

    def record(self) -> CudaEvent:
        """A new event behind everything queued so far."""
        with self._device.current():
            try:
                event = self._idle.pop()
            except IndexError:
                event = self._device.cupy.cuda.Event(block=True, disable_timing=True)
            event.record(self.raw)
        return CudaEvent(self._device, event, self._idle)

    def wait_for(self, event: CudaEvent) -> None:
        """What is queued here from now on runs after `event`. The device waits, this thread does not."""
        with self._device.current():
            self.raw.wait_event(event.raw)

    def synchronize(self) -> None:
        """Block this thread until everything queued here has run. CudaError when some of it failed."""
        with self._device.current():
            self.raw.synchronize()

    def __repr__(self) -> str:
        return f"CudaStream({self._name!r}, {self.device})"
