"""The zip reader: it sees what Python's `zipfile` sees, and refuses archives that can be read in two ways."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aie_loader import MalformedHeaderError, ModelFileError, TruncatedFileError
from aie_loader.formats import Leniency
from aie_loader.formats.source import SourceFile
from aie_loader.formats.zip_archive import read_member, read_zip_directory

Mutate = Callable[[bytearray], None]


def good(method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("a", b"first member")
        archive.writestr("folder/b", b"second" * 40)
        archive.comment = comment
    return buffer.getvalue()


def contents(path: Path, lenient: frozenset[Leniency] = frozenset()) -> dict[str, bytes]:
    with SourceFile(path) as source:
        members = read_zip_directory(source, lenient=lenient)
        return {name: read_member(source, member) for name, member in members.items()}


EXPECTED = {"a": b"first member", "folder/b": b"second" * 40}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("comment", [b"", b"a comment", bytes(range(256)) * 255])
def test_members_equal_zipfiles(method: int, comment: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(good(method, comment))
    assert contents(tmp_path / "a.zip") == EXPECTED


def test_sizes_that_follow_the_member_and_zip64(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        """Not seekable, so that `zipfile` writes sizes after the data."""

        def seekable(self) -> bool:
            return False

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        for name, raw in EXPECTED.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(raw)
    (tmp_path / "a.zip").write_bytes(pipe.getvalue())
    assert contents(tmp_path / "a.zip") == EXPECTED


def test_an_archive_without_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w"):
        pass
    assert contents(tmp_path / "a.zip") == {}


def put(signature: bytes, offset: int, layout: str, value: int, *, occurrence: int = 0) -> Mutate:
    """Overwrite one number of the `occurrence`-th record that starts with `signature`."""

    def mutate(raw: bytearray) -> None:
        at = -1
        for _ in range(occurrence + 1):
            at = raw.index(signature, at + 1)
        struct.pack_into(layout, raw, at + offset, value)

    return mutate


ROW, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"


def prepend(raw: bytearray) -> None:
    raw[:0] = b"#!/bin/sh\n"


def put_hole(raw: bytearray) -> None:
    at = raw.index(ROW)
    raw[at:at] = b"hidden"
    end = raw.index(END)
    struct.pack_into("<L", raw, end + 16, struct.unpack_from("<L", raw, end + 16)[0] + 6)


def rename(raw: bytearray) -> None:
    at = raw.index(b"folder/b")
    raw[at : at + 8] = b"folder/c"


def same_name_twice(raw: bytearray) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x", b"1")
        archive.writestr("y", b"2")
    raw[:] = buffer.getvalue().replace(b"y", b"x")


BROKEN: dict[str, tuple[Mutate, type[Exception], str]] = {
    "something before": (prepend, MalformedHeaderError, "does not end where its end record begins"),
    "something after": (lambda raw: raw.extend(b"tail"), TruncatedFileError, "ends with its directory"),
    "comment like an end record": (
        lambda raw: raw.__setitem__(slice(None), good(comment=b"PK\5\6" * 30)),
        TruncatedFileError,
        "ends with its directory",
    ),
    "hole": (put_hole, MalformedHeaderError, "6 bytes before the directory belong to no member"),
    "overlap": (put(ROW, 42, "<L", 0, occurrence=1), MalformedHeaderError, "another name, method or flag"),
    "another disk": (put(ROW, 34, "<H", 3), MalformedHeaderError, "on another disk"),
    "in several files": (put(END, 4, "<H", 1), MalformedHeaderError, "in several files"),
    "count too large": (put(END, 10, "<H", 9), MalformedHeaderError, "in several files"),
    "directory too small": (put(END, 12, "<L", 10), MalformedHeaderError, "does not end where"),
    "version 20": (put(ROW, 6, "<H", 200), MalformedHeaderError, "needs version 20.0"),
    "encrypted": (put(ROW, 8, "<H", 1), MalformedHeaderError, "is encrypted"),
    "bzip2": (put(ROW, 10, "<H", 12), MalformedHeaderError, "compressed by method 12"),
    "stored sizes differ": (put(ROW, 24, "<L", 11), MalformedHeaderError, "12 bytes in the file and 11 outside"),
    "two names": (rename, MalformedHeaderError, "another name"),
    "two sizes": (put(LOCAL, 22, "<L", 11), MalformedHeaderError, "another size in its own header"),
    "two methods": (put(LOCAL, 8, "<H", 8), MalformedHeaderError, "another name, method or flag"),
    "offset beyond": (put(ROW, 42, "<L", 5000), TruncatedFileError, "starts at byte 5,000"),
    "no local header": (put(ROW, 42, "<L", 3), MalformedHeaderError, "does not start with a member's header"),
    "no zip64 field": (put(ROW, 42, "<L", 0xFFFFFFFF), MalformedHeaderError, "no zip64 field"),
    "name too long": (put(ROW, 28, "<H", 60000), MalformedHeaderError, "row 0 of the archive's directory is not one"),
    "name empty": (put(ROW, 28, "<H", 0), MalformedHeaderError, "name is empty"),
    "wrong signature": (put(ROW, 0, "<L", 0), MalformedHeaderError, "row 0 of the archive's directory is not one"),
    "two checksums": (put(ROW, 16, "<L", 1), MalformedHeaderError, "another checksum in its own header"),
    "damaged": (lambda raw: raw.__setitem__(raw.index(b"first member"), 0), MalformedHeaderError, "is damaged"),
    "name twice": (same_name_twice, MalformedHeaderError, "two members named 'x'"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_broken_rule_is_named(rule: str, tmp_path: Path) -> None:
    mutate, error, words = BROKEN[rule]
    raw = bytearray(good())
    mutate(raw)
    (tmp_path / "a.zip").write_bytes(raw)
    with pytest.raises(error) as caught:
        contents(tmp_path / "a.zip")
    assert words in str(caught.value) and str(tmp_path / "a.zip") in str(caught.value)


def test_no_deflate_stream_expands_that_far(tmp_path: Path) -> None:
    raw = bytearray(good(zipfile.ZIP_DEFLATED))
    put(ROW, 24, "<L", 1 << 30)(raw)
    (tmp_path / "a.zip").write_bytes(raw)
    with pytest.raises(MalformedHeaderError, match="cannot expand from"):
        contents(tmp_path / "a.zip")


def test_a_hole_can_be_let_through(tmp_path: Path) -> None:
    raw = bytearray(good())
    put_hole(raw)
    (tmp_path / "a.zip").write_bytes(raw)
    assert contents(tmp_path / "a.zip", frozenset({Leniency.HOLES})) == EXPECTED


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """The bomb that needs no deep nesting: many rows of the directory, one run of bytes."""
    raw = bytearray(good())
    row = raw[raw.index(ROW) : raw.index(ROW) + 47]
    row[46:47] = b"a"
    end = raw.index(END)
    copies = b"".join(bytes(row[:46]) + b"a" for _ in range(3))
    raw[end:end] = copies
    end += len(copies)
    for offset, value in ((8, 5), (10, 5)):
        struct.pack_into("<H", raw, end + offset, value)
    struct.pack_into("<L", raw, end + 12, end - raw.index(ROW))
    (tmp_path / "a.zip").write_bytes(raw)
    with pytest.raises(MalformedHeaderError, match="two members named 'a'"):
        contents(tmp_path / "a.zip")


def test_every_truncation_is_refused(scratch_file: Callable[[bytes, str], Path]) -> None:
    raw = good(comment=b"hello")
    for length in range(len(raw)):
        with pytest.raises(ModelFileError):
            contents(scratch_file(raw[:length], ".zip"))
