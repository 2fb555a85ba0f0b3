"""The directory of a zip archive, read strictly: NumPy's `.npz` and PyTorch's `.pt` are zip archives.

    member*                                  each: local header (30 bytes, name, extra field), then its bytes
    directory: one row per member            46 bytes, name, extra field, comment
    end record                               22 bytes and a comment, preceded by a zip64 record where numbers are large

A zip archive says everything twice (in the directory and before each member), which is how two programs come to see two
different archives in one file. Here both places must agree, and members, directory and end record must cover the file
without a gap or an overlap; so there is one way to read it, and no bomb of members that share their bytes.

Layout: PKWARE's APPNOTE.TXT, sections 4.3 to 4.5.
"""

import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass

from aie_loader.errors import MalformedHeaderError, TruncatedFileError
from aie_loader.formats.leniency import STRICT, Leniency, remedy
from aie_loader.formats.source import SourceFile
from aie_loader.formats.zip_end import DirectoryPlace, find_directory

__all__ = ["ZipMember", "read_member", "read_zip_directory"]

_ROW = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 1, 8, 1 << 11
_MAX_VERSION = 63  # ten times the version of the format
_U32_FULL = (1 << 32) - 1
_DEFLATE_MOST = 1032  # a deflate stream cannot expand further: 258 bytes for two bits
_DESCRIPTOR_MOST = 24  # bytes between a member and the next one when its sizes follow it


@dataclass(frozen=True, slots=True)
class ZipMember:
    """One member, validated: its bytes are inside the file and belong to no other."""

    name: str
    header_offset: int  # of its local header
    data_offset: int
    stored_bytes: int  # as they lie in the file
    num_bytes: int  # after expansion
    crc32: int
    flags: int
    compressed: bool


def read_zip_directory(source: SourceFile, *, lenient: Collection[Leniency] = STRICT) -> dict[str, ZipMember]:
    """name → member, in the order of the directory. Reads directory and local headers, no member's bytes.

    So checksums are compared with each other, but not with the bytes: whoever maps a member does not read it here.
    """
    place = find_directory(source)
    raw = source.read(place.offset, place.num_bytes)
    members: dict[str, ZipMember] = {}
    position = 0
    for index in range(place.num_members):
        row, position = _read_row(source, raw, position, index, place)
        if row.name in members:
            raise MalformedHeaderError(f"{source.path}: the archive has two members named {row.name!r}")
        members[row.name] = row
    if position != len(raw):
        raise MalformedHeaderError(f"{source.path}: {len(raw) - position:,} bytes after the directory's last row")
    _check_gap_free(source, members, place.offset, lenient)
    return members


def read_member(source: SourceFile, member: ZipMember) -> bytes:
    """A member's bytes, expanded and checked against its checksum."""
    where = f"{source.path}: member {member.name!r}"
    data = source.read(member.data_offset, member.stored_bytes)
    if member.compressed:
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One byte more than promised shows whether there is more, however much more it is.
            data = stream.decompress(data, member.num_bytes + 1)
        except zlib.error as error:
            raise MalformedHeaderError(f"{where} is not a deflate stream: {error}") from error
        if len(data) != member.num_bytes or not stream.eof or stream.unused_data:
            raise MalformedHeaderError(f"{where} does not expand to the {member.num_bytes:,} bytes that it promises")
    if zlib.crc32(data) != member.crc32:
        raise MalformedHeaderError(f"{where} is damaged: its checksum is not the one in the directory")
    return data


def _read_row(
    source: SourceFile, raw: bytes, position: int, index: int, place: DirectoryPlace
) -> tuple[ZipMember, int]:
    """Row `index` of the directory, and where the next one starts."""
    if position + _ROW.size > len(raw):
        raise TruncatedFileError(f"{source.path}: the directory ends in row {index} of {place.num_members}")
    (signature, _, version, flags, method, _, _, crc32, stored, expanded,
     name_bytes, extra_bytes, comment_bytes, disk, _, _, offset) = _ROW.unpack_from(raw, position)  # fmt: skip
    start = position + _ROW.size
    end = start + name_bytes + extra_bytes + comment_bytes
    if signature != b"PK\x01\x02" or end > len(raw):
        raise MalformedHeaderError(f"{source.path}: row {index} of the archive's directory is not one")
    name = _name(source, raw[start : start + name_bytes], flags)
    where = f"{source.path}: member {name!r}"
    if version & 0xFF > _MAX_VERSION:
        raise MalformedHeaderError(
            f"{where} needs version {(version & 0xFF) / 10} of the zip format; 6.3 is the last known"
        )
    if flags & _ENCRYPTED:
        raise MalformedHeaderError(f"{where} is encrypted")
    if method not in {_STORED, _DEFLATED}:
        raise MalformedHeaderError(f"{where} is compressed by method {method}; 0 (stored) and 8 (deflate) can be read")
    extra = raw[start + name_bytes : start + name_bytes + extra_bytes]
    expanded, stored, offset = _zip64(where, extra, (expanded, stored, offset))
    if disk not in {0, 0xFFFF}:
        raise MalformedHeaderError(f"{where} is said to be on another disk")
    if method == _STORED and stored != expanded:
        raise MalformedHeaderError(f"{where} is stored, but has {stored:,} bytes in the file and {expanded:,} outside")
    if method == _DEFLATED and expanded > _DEFLATE_MOST * (stored + 1):
        raise MalformedHeaderError(f"{where} cannot expand from {stored:,} to {expanded:,} bytes: deflate does not")
    data_offset = _check_local(
        source, where, raw[start : start + name_bytes], offset, (flags, method, stored, expanded, crc32)
    )
    if data_offset + stored > place.offset:
        raise TruncatedFileError(f"{where} ends at byte {data_offset + stored:,}, inside the archive's directory")
    member = ZipMember(name, offset, data_offset, stored, expanded, crc32, flags, method == _DEFLATED)
    return member, end


def _name(source: SourceFile, raw: bytes, flags: int) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError as error:
        raise MalformedHeaderError(f"{source.path}: the name of a member is not valid UTF-8") from error
    if not name or "\0" in name:
        raise MalformedHeaderError(f"{source.path}: a member's name is empty or has a zero byte: {name!r}")
    return name


def _zip64(where: str, extra: bytes, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
    """The numbers that do not fit 32 bits stand in extra field 1, in the order of `numbers`."""
    missing = [index for index, number in enumerate(numbers) if number == _U32_FULL]
    position, large = 0, b""
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            large = extra[position + 4 : position + 4 + size]
        position += 4 + size
    if len(large) < 8 * len(missing):
        raise MalformedHeaderError(f"{where} has numbers beyond 32 bits, but no zip64 field that gives them")
    result = list(numbers)
    for place, index in enumerate(missing):
        result[index] = struct.unpack_from("<Q", large, 8 * place)[0]
    return result[0], result[1], result[2]


def _check_local(source: SourceFile, where: str, name: bytes, offset: int, said: tuple[int, int, int, int, int]) -> int:
    """The header before the member must say what the directory says; returns where the member's bytes start."""
    if offset + _LOCAL.size + len(name) > source.size_bytes:
        raise TruncatedFileError(f"{where} starts at byte {offset:,}, but the file has {source.size_bytes:,}")
    raw = source.read(offset, _LOCAL.size + len(name))
    signature, _, flags, method, _, _, crc32, stored, expanded, name_bytes, extra_bytes = _LOCAL.unpack_from(raw)
    if signature != b"PK\x03\x04":
        raise MalformedHeaderError(f"{where} does not start with a member's header")
    if name_bytes != len(name) or raw[_LOCAL.size :] != name or (flags, method) != said[:2]:
        raise MalformedHeaderError(f"{where} has another name, method or flag in its own header than in the directory")
    # Sizes may be given later (after the data) or elsewhere (in a zip64 field); where they are given, they must agree.
    unsaid = {_U32_FULL} | ({0} if flags & _SIZES_FOLLOW else set())
    if any(own not in unsaid and own != other for own, other in zip((stored, expanded), said[2:4], strict=True)):
        raise MalformedHeaderError(f"{where} has another size in its own header than in the directory")
    if crc32 != said[4] and not (flags & _SIZES_FOLLOW and crc32 == 0):
        raise MalformedHeaderError(f"{where} has another checksum in its own header than in the directory")
    return int(offset + _LOCAL.size + name_bytes + extra_bytes)


def _check_gap_free(
    source: SourceFile, members: dict[str, ZipMember], directory_offset: int, lenient: Collection[Leniency]
) -> None:
    position, slack = 0, 0
    for member in sorted(members.values(), key=lambda member: member.header_offset):
        _check_next(source, f"member {member.name!r}", member.header_offset, position, slack, lenient)
        position = member.data_offset + member.stored_bytes
        slack = _DESCRIPTOR_MOST if member.flags & _SIZES_FOLLOW else 0
    _check_next(source, "the directory", directory_offset, position, slack, lenient)


def _check_next(
    source: SourceFile, what: str, offset: int, position: int, slack: int, lenient: Collection[Leniency]
) -> None:
    if offset < position:
        raise MalformedHeaderError(f"{source.path}: {what} overlaps the member before it")
    if offset > position + slack and Leniency.HOLES not in lenient:
        raise MalformedHeaderError(
            f"{source.path}: {offset - position:,} bytes before {what} belong to no member; {remedy(Leniency.HOLES)}"
        )
