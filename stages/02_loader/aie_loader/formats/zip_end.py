"""The end of a zip archive, where reading one begins: it says where the directory is.

The end record is found from the back, since a comment of any length may follow it. The comment must end with the file,
so that nothing can follow the archive.

Layout: PKWARE's APPNOTE.TXT, sections 4.3.14 to 4.3.16.
"""

import struct
from dataclasses import dataclass

from aie_loader.errors import MalformedHeaderError, TruncatedFileError
from aie_loader.formats.source import SourceFile

__all__ = ["DirectoryPlace", "find_directory"]

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LEAST_ROW_BYTES = 46
_MAX_DIRECTORY_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class DirectoryPlace:
    """Where the directory lies, compared with the size of the file."""

    offset: int
    num_bytes: int
    num_members: int


def find_directory(source: SourceFile) -> DirectoryPlace:
    """Where the archive's directory is. TruncatedFileError where there is no end record."""
    tail_bytes = min(source.size_bytes, _END.size + 0xFFFF)
    tail_start = source.size_bytes - tail_bytes
    tail = source.read(tail_start, tail_bytes)
    at = _find_end(tail)
    if at is None:
        raise TruncatedFileError(
            f"{source.path} is truncated: a zip archive ends with its directory, this one does not"
        )
    end_offset = tail_start + at
    _, disk, directory_disk, here, total, num_bytes, offset, _ = _END.unpack_from(tail, at)
    locator_offset = end_offset - _LOCATOR.size
    if locator_offset >= 0:
        signature, _, end64_offset, _ = _LOCATOR.unpack(source.read(locator_offset, _LOCATOR.size))
        if signature == b"PK\x06\x07":
            end_offset = end64_offset
            disk, directory_disk, here, total, num_bytes, offset = _read_end64(source, end64_offset, locator_offset)
    if disk or directory_disk or here != total:
        raise MalformedHeaderError(f"{source.path} is one part of an archive in several files")
    if offset + num_bytes != end_offset:
        raise MalformedHeaderError(
            f"{source.path}: the archive's directory, {num_bytes:,} bytes from byte {offset:,}, "
            f"does not end where its end record begins, at byte {end_offset:,}"
        )
    if num_bytes > _MAX_DIRECTORY_BYTES or total * _LEAST_ROW_BYTES > num_bytes:
        raise MalformedHeaderError(
            f"{source.path}: {total:,} members in a directory of {num_bytes:,} bytes; each takes at least "
            f"{_LEAST_ROW_BYTES}, and {_MAX_DIRECTORY_BYTES:,} bytes are allowed"
        )
    return DirectoryPlace(offset, num_bytes, total)


def _find_end(tail: bytes) -> int | None:
    """The last end record, whose comment must end with the file. An earlier one is not looked for: a comment that
    looks like an end record is read in two ways by two programs."""
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        return None
    return at if at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail) else None


def _read_end64(source: SourceFile, offset: int, locator_offset: int) -> tuple[int, int, int, int, int, int]:
    if offset + _END64.size != locator_offset:
        raise MalformedHeaderError(f"{source.path}: the archive's zip64 end record is not where its locator says")
    signature, size, _, _, *numbers = _END64.unpack(source.read(offset, _END64.size))
    if signature != b"PK\x06\x06" or size != _END64.size - 12:
        raise MalformedHeaderError(f"{source.path}: the archive's zip64 end record is not one")
    return numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
