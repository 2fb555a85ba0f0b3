"""Messages between the fleet and its processes: pickled, each behind its length, over a pair of sockets.

Both ends are the same program, so pickle is safe here. A socket that is closed is how each learns that the other has
died, whatever killed it.
"""

import pickle
import struct
from typing import Any

__all__ = ["Frames", "frame"]

_LENGTH = struct.Struct("<Q")


def frame(message: tuple[Any, ...]) -> bytes:
    """One message as bytes."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Bytes as they come, messages as they are complete."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        self._rest += data
        found: list[tuple[Any, ...]] = []
        at = 0
        while len(self._rest) - at >= _LENGTH.size:
            begin = at + _LENGTH.size
            end = begin + _LENGTH.unpack_from(self._rest, at)[0]
            if len(self._rest) < end:
                break
            found.append(pickle.loads(memoryview(self._rest)[begin:end]))
            at = end
        if at:
            del self._rest[:at]
        return found
