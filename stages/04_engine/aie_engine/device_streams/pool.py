"""A fixed number of streams, used in turn.

More streams are more work at a time, up to what the machine can do at a time. Beyond that they only compete: for cores,
for caches, for the memory bus. `benchmarks/overlap.py` shows where that is on a machine.
"""

from collections.abc import Iterator
from itertools import cycle
from types import TracebackType

from aie_engine.device_streams.checker import StreamChecker
from aie_engine.device_streams.stream import CpuStream, synchronize_all
from aie_tensor import InvalidInputError

__all__ = ["MAX_STREAMS", "StreamPool"]

MAX_STREAMS = 8


class StreamPool:
    """`num_streams` from 1 to 8, called `name`-0, `name`-1, …"""

    def __init__(self, num_streams: int = 2, *, name: str = "stream", checker: StreamChecker | None = None) -> None:
        if not 1 <= num_streams <= MAX_STREAMS:
            raise InvalidInputError(
                f"a pool has 1 to {MAX_STREAMS} streams, not {num_streams}: each is a thread, and more than there are "
                "cores only get in each other's way",
                param="num_streams",
            )
        self._streams = tuple(CpuStream(f"{name}-{index}", checker=checker) for index in range(num_streams))
        self._turn = cycle(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[CpuStream]:
        return iter(self._streams)

    def next(self) -> CpuStream:
        """Whose turn it is."""
        return next(self._turn)

    def synchronize(self) -> None:
        """Wait for all; then raise the first error there was, in the order of the streams."""
        synchronize_all(self._streams)

    def close(self) -> None:
        """End all threads, after what is queued."""
        for stream in self._streams:
            stream.close()

    def __enter__(self) -> "StreamPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
