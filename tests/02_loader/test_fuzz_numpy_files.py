"""NumPy's files, searched: sound arrays and archives with a few rules broken, read by us and by NumPy.

What we accept, NumPy must accept (without pickle), with the same values. What only NumPy accepts must be one of the
differences written down here, or a `Leniency`.
"""

import io
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_loader import ModelFileError
from aie_loader.errors import UnsupportedTensorTypeError
from aie_loader.formats import Leniency, open_npy, open_npz
from aie_tensor import DType

Write = Callable[[bytes, str], Path]

# What only NumPy accepts in an array, and why we do not.
ALLOWED = [
    r"the header is not a dictionary of descr",  # it evaluates any literal: comments, sums, escapes, lists as shapes
    r"the header's key .* occurs twice",  # the last one counts there
    r"shape is not a tuple",  # a truth value is an integer there
    r"has more than \d+ dimensions",  # 64 there
]
# What only Python's `zipfile`, which NumPy uses, accepts in an archive.
ALLOWED_ARCHIVE = [
    *ALLOWED,
    r"does not end where its end record begins",  # there an archive may have something before it
    r"ends with its directory",  # bytes after the archive, a comment that is cut
    r"another (name, method or flag|size|checksum) in its own",  # it compares names only
    r"two members named|is encrypted|needs version|compressed by method",  # the last of one name counts
    r"is damaged|does not expand|is not a deflate stream|cannot expand",  # it looks at members when they are asked for
    r"overlaps the member before it|on another disk|in several files|a directory of|end record is not",
    r"zip64|stored, but has|member's header|bytes after the directory|is truncated|ends at byte|name is empty",
    r"bytes before .* belong to no member",
    r"of the archive's directory is not one",  # a comment that ends after the file
    r"is no array",
    r"is not a NumPy array",  # members that are not arrays are given as bytes
]

TYPES = [dtype.numpy.str for dtype in DType if dtype.numpy is not None]
descrs = st.one_of(
    st.sampled_from(TYPES),
    st.sampled_from([descr.replace("<", ">") for descr in TYPES]),
    st.sampled_from(
        ["|O", "<U3", "|S2", "|V4", "<f16", "<c16", "<M8[s]", "=f4", "f4", "|f4", "<i1", ">u1", "", "<x4", "<f3"]
    ),
)
shapes = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def headers(draw: st.DrawFn) -> tuple[str, int]:
    """The text of a header, mostly sound, and how many bytes of data it needs."""
    descr = draw(st.one_of(st.sampled_from(TYPES), descrs))
    shape = draw(shapes)
    order = draw(st.booleans())
    quote = draw(st.sampled_from(["'", '"']))
    comma = "," if len(shape) == 1 or (shape and draw(st.booleans())) else ""
    sizes = ", ".join(map(str, shape)) + comma
    fields = [f"{quote}descr{quote}: {quote}{descr}{quote}", f"'fortran_order': {order}", f"'shape': ({sizes})"]
    text = "{" + ", ".join(draw(st.permutations(fields))) + draw(st.sampled_from([", }", "}", " ,}"]))
    try:
        itemsize = np.dtype(descr).itemsize
    except TypeError:
        itemsize = 1
    return text, int(np.prod(shape, dtype=np.int64)) * itemsize


@st.composite
def arrays(draw: st.DrawFn) -> bytes:
    text, size = draw(headers())
    for _ in range(draw(st.integers(0, 1))):
        text = change_text(draw, text)
    version = draw(st.sampled_from([1, 1, 1, 2, 3, 0, 4]))
    raw = text.encode("utf-8" if version == 3 else "latin-1", "replace") + draw(
        st.sampled_from([b"", b"\n", b"    \n"])
    )
    length = len(raw) + draw(st.sampled_from([0] * 8 + [-1, 1, 30, 9_000]))
    extra = draw(st.sampled_from([0] * 8 + [-1, 1, 8]))
    data = bytes(i % 251 for i in range(max(size + extra, 0)))
    prefix = b"\x93NUMPY" + bytes([version, draw(st.sampled_from([0] * 9 + [1]))])
    return prefix + struct.pack("<H" if version == 1 else "<I", max(length, 0)) + raw + data


def change_text(draw: st.DrawFn, text: str) -> str:
    kind = draw(st.sampled_from(["number", "word", "inside", "cut"]))
    if kind == "number":
        found = list(re.finditer(r"\d+", text))
        if not found:
            return text
        at = draw(st.sampled_from(found))
        new = draw(
            st.sampled_from(["-{}", "0{}", "{}.0", "{}L", "0x{}", "{}_0", "True", "None", "{}+1", "9" * 30, "'{}'"])
        )
        return text[: at.start()] + new.format(at.group()) + text[at.end() :]
    if kind == "word":
        old, new = draw(st.sampled_from([
            ("(", "["), (")", "]"), ("True", "1"), ("False", "None"), ("'", '"'), (",", ""), (":", "="), ("}", "}}"),
            ("{", "{{"), ("shape", "descr"), ("shape", "Shape"), ("'shape'", "u'shape'"), ("(", "(("), ("(", "tuple("),
        ]))  # fmt: skip
        return text.replace(old, new, 1)
    at = draw(st.integers(0, len(text)))
    if kind == "cut":
        return text[:at]
    return text[:at] + draw(st.sampled_from([" ", "\n", "\t", "\0", "#", "\\", "é", "1", ",", "'x': 1,"])) + text[at:]


def numpys(read: Callable[[], Any]) -> Any:
    """What NumPy sees; None where it refuses, in whatever way."""
    try:
        return read()
    except Exception:
        return None


@settings(settings.get_profile("fuzz"))
@given(arrays())
def test_fuzz_arrays_against_numpy(scratch_file: Write, raw: bytes) -> None:
    path = scratch_file(raw, ".npy")
    theirs = numpys(lambda: np.load(path, allow_pickle=False))
    try:
        ours = open_npy(path)
    except UnsupportedTensorTypeError:
        return
    except ModelFileError as error:
        if theirs is None or any(re.search(pattern, str(error)) for pattern in ALLOWED):
            return
        assert "be lenient about" in str(error), error
        ours = open_npy(path, lenient=Leniency)
    assert theirs is not None, "we accept what NumPy refuses"
    assert ours["arr_0"].shape == theirs.shape
    assert ours["arr_0"].array().tobytes() == theirs.astype(theirs.dtype.newbyteorder("<")).tobytes()


# Archives

RECORDS = {  # signature → offset and width of the numbers in the record
    b"PK\3\4": [(4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)],
    b"PK\1\2": [(6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2), (42, 4)],
    b"PK\5\6": [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)],
}
INTERESTING = [0, 1, 2, 8, 12, 30, 46, 200, 2**16 - 1, 2**32 - 1, 2**31]


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in draw(st.lists(st.sampled_from(["a.npy", "b.npy", "é.npy", "d/e.npy", "note.txt"]), max_size=3)):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            content = io.BytesIO()
            np.save(content, np.arange(draw(st.integers(0, 40)), dtype=draw(st.sampled_from(["<f4", ">i2", "|u1"]))))
            compression = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
            archive.writestr(member, content.getvalue(), compression)
        archive.comment = draw(st.sampled_from([b"", b"a comment", b"PK\5\6"]))
    raw = bytearray(buffer.getvalue())
    for _ in range(draw(st.integers(0, 2))):
        change_archive(draw, raw)
    return bytes(raw)


def change_archive(draw: st.DrawFn, raw: bytearray) -> None:
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        edit = draw(st.sampled_from(["cut", "insert", "append", "flip"]))
        if edit == "cut":
            del raw[at:]
        elif edit == "flip" and raw:
            raw[at] ^= draw(st.sampled_from([1, 0x80, 0xFF]))
        else:
            at = len(raw) if edit == "append" else at
            raw[at:at] = draw(st.sampled_from([b"\0", b"PK\3\4", b"PK\5\6" + bytes(18), b"hidden bytes"]))
        return
    signature = draw(st.sampled_from(sorted(RECORDS)))
    starts = [found.start() for found in re.finditer(re.escape(signature), raw)]
    if not starts:
        return
    offset, width = draw(st.sampled_from(RECORDS[signature]))
    at = draw(st.sampled_from(starts)) + offset
    old = int.from_bytes(raw[at : at + width], "little")
    new = draw(st.one_of(st.sampled_from(INTERESTING), st.sampled_from([old - 1, old + 1, old + 46])))
    raw[at : at + width] = (new % 256**width).to_bytes(width, "little")


def damaged(path: Path) -> bool:
    """True when the bytes of a member do not have its checksum."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip() is not None


def load_all(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(settings.get_profile("fuzz"))
@given(archives())
def test_fuzz_archives_against_numpy(scratch_file: Write, raw: bytes) -> None:
    path = scratch_file(raw, ".npz")
    theirs = numpys(lambda: load_all(path))
    try:
        ours = open_npz(path)
    except UnsupportedTensorTypeError:
        return
    except ModelFileError as error:
        assert theirs is None or any(re.search(pattern, str(error)) for pattern in ALLOWED_ARCHIVE), error
        return
    if theirs is None and damaged(path):  # what only we accept: we map an uncompressed array without reading it
        return
    assert theirs is not None, "we accept what NumPy refuses"
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        assert ours[name].array().tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
