"""Reading the little-endian values of a GGUF header: integers, floats, strings, arrays.

Every count and length in a header is a claim by whoever wrote the file. A claim is compared with the bytes that are
left in the file before anything is allocated for it: a string of n bytes needs n bytes, an array of n strings at least
8n. So a file of 4 KB can never make the reader allocate more than a few times 4 KB, whatever it claims.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from aie_loader.errors import MalformedHeaderError, TruncatedFileError
from aie_loader.formats.source import SourceFile

__all__ = ["HeaderCursor", "ValueType"]

_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 256 << 20
_MAX_ARRAY_LENGTH = 1 << 24
_MAX_ARRAY_DEPTH = 4
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class ValueType(IntEnum):
    """Type codes of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_NUMPY: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("<u1"),
    ValueType.INT8: np.dtype("<i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}
# The least that one element can occupy in the file: a string and an array have at least their length field(s).
_LEAST_BYTES = {ValueType.STRING: 8, ValueType.ARRAY: 12, ValueType.BOOL: 1} | {
    kind: dtype.itemsize for kind, dtype in _NUMPY.items()
}


class HeaderCursor:
    """Walks forward through the start of a file, fetching it in chunks as needed."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._buffer = bytearray()
        self.position = 0

    def claim(self, num_bytes: int, what: str) -> int:
        """Advance over `num_bytes`, which are then in the buffer; returns where they start."""
        start, end = self.position, self.position + num_bytes
        if end > self._source.size_bytes:
            raise TruncatedFileError(
                f"{self._source.path} is truncated: {what} needs {num_bytes:,} bytes at byte {start:,}, "
                f"but the file has {self._source.size_bytes:,}"
            )
        if end > _MAX_HEADER_BYTES:
            raise MalformedHeaderError(
                f"{self._source.path}: the header is larger than {_MAX_HEADER_BYTES >> 20} MiB, at {what}"
            )
        if end > len(self._buffer):
            more = min(max(end - len(self._buffer), _CHUNK_BYTES), self._source.size_bytes - len(self._buffer))
            self._buffer += self._source.read(len(self._buffer), more)
        self.position = end
        return start

    def bytes(self, num_bytes: int, what: str) -> bytes:
        start = self.claim(num_bytes, what)
        return bytes(self._buffer[start : self.position])

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._buffer, self.claim(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._buffer, self.claim(8, what))[0])

    def count(self, what: str, least_bytes: int) -> int:
        """A number of things of which each occupies at least `least_bytes` of what follows."""
        number = self.u64(what)
        left = self._source.size_bytes - self.position
        if number * least_bytes > left:
            raise TruncatedFileError(
                f"{self._source.path} is truncated: {what} is {number:,}, which needs at least "
                f"{number * least_bytes:,} more bytes, but the file has {left:,}"
            )
        return number

    def string(self, what: str) -> str:
        raw = self.bytes(self.u64(f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedHeaderError(f"{self._source.path}: {what} is not valid UTF-8 ({error.reason})") from error

    def value_type(self, what: str) -> ValueType:
        code = self.u32(f"the type of {what}")
        try:
            return ValueType(code)
        except ValueError as error:
            raise MalformedHeaderError(f"{self._source.path}: {what} has the unknown value type {code}") from error

    def value(self, kind: ValueType, what: str, depth: int = 0) -> object:
        """One metadata value: int, float, bool, str, or a list of these."""
        if kind is ValueType.STRING:
            return self.string(what)
        if kind is ValueType.BOOL:
            return self._bools(1, what)[0]
        if kind is ValueType.ARRAY:
            return self._array(what, depth + 1)
        return self._numbers(kind, 1, what)[0]

    def _array(self, what: str, depth: int) -> list[object]:
        if depth > _MAX_ARRAY_DEPTH:
            raise MalformedHeaderError(f"{self._source.path}: {what} nests arrays deeper than {_MAX_ARRAY_DEPTH}")
        kind = self.value_type(f"the elements of {what}")
        length = self.count(f"the length of {what}", _LEAST_BYTES[kind])
        if length > _MAX_ARRAY_LENGTH:
            raise MalformedHeaderError(f"{self._source.path}: {what} has over {_MAX_ARRAY_LENGTH:,} elements")
        if kind is ValueType.BOOL:
            return list(self._bools(length, what))
        if kind in _NUMPY:
            return self._numbers(kind, length, what)
        one: Callable[[], object] = (
            (lambda: self.string(what)) if kind is ValueType.STRING else (lambda: self._array(what, depth + 1))
        )
        return [one() for _ in range(length)]

    def _numbers(self, kind: ValueType, length: int, what: str) -> list[object]:
        raw = self.bytes(length * _NUMPY[kind].itemsize, what)
        return list(np.frombuffer(raw, dtype=_NUMPY[kind]).tolist())

    def _bools(self, length: int, what: str) -> list[bool]:
        raw = self.bytes(length, what)
        if raw.strip(b"\x00\x01"):
            # strip only looks at the ends, which is where a wrong byte is left over, wherever it was
            raise MalformedHeaderError(f"{self._source.path}: {what} is a bool but neither 0 nor 1")
        return [byte == 1 for byte in raw]
