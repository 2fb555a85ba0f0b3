"""Streams and events backed by threads: order without waiting, on the CPU, as devices have it.

errors.py   what can go wrong on a stream
checker.py  a missing event is found by reasoning, on the first run
stream.py   a queue of work and a thread that does it; events
pool.py     a fixed number of streams, used in turn
staging.py  the next batch is staged while the present one is computed

They are `Stream` and `Event` of stage 1, so a pool's blocks may be used on them.
"""

from aie_engine.device_streams.checker import StreamBuffer, StreamChecker
from aie_engine.device_streams.errors import MissingDependencyError, StreamError
from aie_engine.device_streams.pool import MAX_STREAMS, StreamPool
from aie_engine.device_streams.staging import StagedPipeline
from aie_engine.device_streams.stream import CpuEvent, CpuStream

__all__ = [
    "MAX_STREAMS",
    "CpuEvent",
    "CpuStream",
    "MissingDependencyError",
    "StagedPipeline",
    "StreamBuffer",
    "StreamChecker",
    "StreamError",
    "StreamPool",
]
