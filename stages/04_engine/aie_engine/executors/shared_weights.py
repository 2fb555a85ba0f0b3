"""Packed weights in memory that several worker processes map, so that N workers hold one copy.

The memory is an anonymous file: it has no name that could be left behind, and it lives as long as somebody maps it. The
first worker packs into it and writes at the end an index of what lies where. Whoever finds an index maps the file
read-only and packs nothing, so that a start, and a restart, is quicker, too. Weights are told apart by name and must
have the shape that is asked for: a worker that finds another model's is refused.

    | weight | weight | … | index | footer |      each weight at a cache line; footer: magic, bytes of the index
"""

import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from aie_engine.errors import ModelCheckError
from aie_tensor import Matrix
from aie_tensor.native import NativeLibrary, PackedMatrix

__all__ = ["SharedMemory", "SharedWeights", "can_share"]

Bytes = npt.NDArray[np.uint8]

_FOOTER = struct.Struct("<8sQ")
_MAGIC = b"aieshare"
_CACHE_LINE = 64


class _Entry(msgspec.Struct, array_like=True):
    """Where one weight lies, and what it is."""

    offset: int
    nbytes: int
    format: int
    n: int
    k: int


def can_share() -> bool:
    """Whether this system hands open files on to the processes that it spawns."""
    return hasattr(reduction, "DupFd")


class SharedMemory:
    """An anonymous file; as an argument of a process that is being spawned it arrives there open."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("aie-weights")
        else:
            with tempfile.TemporaryFile() as file:  # it has no name, or loses it at once
                self.fd = os.dup(file.fileno())

    def close(self) -> None:
        """Let go of it; whoever maps it keeps it. Again is harmless."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.fd)

    def __setstate__(self, duplicate: Any) -> None:
        self.fd = duplicate.detach()


class SharedWeights:
    """One process's view: `packed` for every weight, in any order and from any thread; then `finish`; `close` last.

    capacity: bytes that all weights have room in, index included. No more memory is taken than is written.
    """

    def __init__(self, memory: SharedMemory, capacity: int) -> None:
        self._fd = memory.fd
        self._lock = threading.Lock()
        self._entries = self._read_index()
        self.is_maker = self._entries is None
        self._end = 0
        if self.is_maker:
            os.ftruncate(self._fd, 0)  # what a maker left that did not come to its end
            os.ftruncate(self._fd, capacity)
        access = mmap.ACCESS_WRITE if self.is_maker else mmap.ACCESS_READ
        self._mapping = mmap.mmap(self._fd, 0, access=access)
        self._bytes: Bytes = np.frombuffer(self._mapping, np.uint8)
        self._made: dict[str, _Entry] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all weights that are there."""
        return sum(entry.nbytes for entry in (self._made if self._entries is None else self._entries).values())

    def packed(
        self, lib: NativeLibrary, name: str, shape: tuple[int, ...], matrix: Callable[[], Matrix]
    ) -> PackedMatrix:
        """The weight `name` [N, K], packed from `matrix()` or found. `ModelCheckError` for one that is another."""
        if self._entries is None:
            made = PackedMatrix.pack(lib, matrix(), allocate=self._reserve)
            offset = made.data.ctypes.data - self._bytes.ctypes.data
            with self._lock:
                self._made[name] = _Entry(offset, made.nbytes, made.format, made.n, made.k)
            return made
        entry = self._entries.get(name)
        if entry is None or (entry.n, entry.k) != tuple(shape):
            raise ModelCheckError(
                f"The weight {name} is not what the first worker has: the model's files have changed."
            )
        data = self._bytes[entry.offset : entry.offset + entry.nbytes]
        return PackedMatrix(entry.format, entry.n, entry.k, data)

    def finish(self) -> None:
        """Every weight has been asked for: whoever comes now finds them."""
        if self._entries is None:
            index = msgspec.msgpack.encode(self._made)
            os.pwrite(self._fd, index + _FOOTER.pack(_MAGIC, len(index)), self._end)
            os.ftruncate(self._fd, self._end + len(index) + _FOOTER.size)

    def close(self) -> None:
        """Unmap. The weights must not be read afterwards; a mapping that somebody still refers to goes with them."""
        self._bytes = np.empty(0, np.uint8)
        with suppress(BufferError):
            self._mapping.close()

    def _reserve(self, nbytes: int) -> Bytes:
        with self._lock:
            begin, self._end = self._end, self._end + -(-nbytes // _CACHE_LINE) * _CACHE_LINE
        assert self._end <= len(self._bytes), (self._end, len(self._bytes))
        return self._bytes[begin : begin + nbytes]

    def _read_index(self) -> dict[str, _Entry] | None:
        size = os.fstat(self._fd).st_size
        if size < _FOOTER.size:
            return None
        magic, length = _FOOTER.unpack(os.pread(self._fd, _FOOTER.size, size - _FOOTER.size))
        if magic != _MAGIC:
            return None
        index = os.pread(self._fd, length, size - _FOOTER.size - length)
        return msgspec.msgpack.decode(index, type=dict[str, _Entry])
