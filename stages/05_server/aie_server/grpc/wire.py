"""Protocol buffers on the wire: what a message is before anybody says what its fields mean.

    message   fields, one after another, in any order
    field     a varint: number << 3 | type; then its value
    type 0    a varint: seven bits in each byte, the lowest first, and a top bit that says "more follows"
    type 1    eight bytes, little-endian
    type 2    a varint with a length, and so many bytes: text, bytes, another message, or numbers packed together
    type 5    four bytes, little-endian

    08 96 01              field 1, type 0: 150
    12 02 68 69           field 2, type 2: two bytes, "hi"

Types 3 and 4 (groups) left the format long ago and are refused. Bytes are read where they lie: nothing is copied.
"""

from collections.abc import Iterator
from typing import Final

from aie_engine import InvalidInputError

__all__ = [
    "BYTES",
    "FIXED32",
    "FIXED64",
    "VARINT",
    "WireError",
    "count_varints",
    "read_fields",
    "read_varints",
    "write_varint",
]

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_MAX_VARINT_BYTES: Final = 10  # 64 bits
_MAX_NUMBER: Final = (1 << 29) - 1
_WITH_MORE: Final = bytes(range(0x80, 0x100))  # bytes that another one of the same varint follows
_SIZES: Final = {FIXED32: 4, FIXED64: 8}


class WireError(InvalidInputError):
    """The bytes are not a message."""

    code = "invalid_message"


def read_fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, type and value of every field: an int for varints, else the bytes. Raises `WireError`."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= _MAX_NUMBER:
            raise WireError(f"The message has a field with the number {number}, which no field can have.")
        if kind == VARINT:
            value, position = _varint(data, position)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, position = _varint(data, position)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise WireError(f"Field {number} of the message has the wire type {kind}, which is not read here.")
        if size > end - position:
            raise WireError(f"The message ends within its field {number}.")
        yield number, kind, data[position : position + size]
        position += size


def count_varints(data: memoryview) -> int:
    """How many numbers are packed together: each has one last byte, so none is read for it."""
    return len(bytes(data).translate(None, _WITH_MORE))


def read_varints(data: memoryview) -> list[int]:
    """Numbers packed together, each below 1 << 64. Raises `WireError`."""
    raw = bytes(data)
    if raw.isascii():  # every one fits in a byte
        return list(raw)
    position, values = 0, []
    while position < len(raw):
        value, position = _varint(data, position)
        values.append(value)
    return values


def write_varint(value: int) -> bytes:
    """A number from 0 to (1 << 64) - 1."""
    assert 0 <= value < 1 << 64, value
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for index, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise WireError("The message ends within a number, or has one of more than 64 bits.")
