"""NumPy's files: values equal NumPy's, nothing is unpickled, and every broken rule is named."""

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_loader import MalformedHeaderError, ModelFileError, TruncatedFileError
from aie_loader.errors import UnsupportedTensorTypeError
from aie_loader.formats import Leniency, open_npy, open_npz
from aie_tensor import DType

TYPES = [dtype.numpy for dtype in DType if dtype.numpy is not None]


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    made = {f"type.{dtype.str[1:]}": random.integers(0, 2, (3, 5)).astype(dtype) for dtype in TYPES}
    base = random.standard_normal((4, 6)).astype(np.float32)
    return made | {
        "fortran": np.asfortranarray(base),
        "fortran.vector": np.asfortranarray(base[0]),
        "fortran.cube": np.asfortranarray(random.standard_normal((2, 3, 4))),
        "big": base.astype(">f4"),
        "big.fortran": np.asfortranarray(base.astype(">f8")),
        "empty": np.zeros((0, 7), np.int16),
        "scalar": np.array(2.5),
        "ünïcode name": base[:1],
    }


def assert_equal(ours: Any, theirs: Any) -> None:
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours.array(), theirs)
    assert ours.dtype is DType.from_numpy(theirs.dtype)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_values_equal_numpys(save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path / "a.npz", **arrays())
    with np.load(tmp_path / "a.npz") as theirs, open_npz(tmp_path / "a.npz") as ours:
        assert list(ours) == list(theirs)
        for name in theirs:
            assert_equal(ours[name], theirs[name])


@pytest.mark.parametrize("name", arrays())
def test_single_arrays_equal_numpys(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", arrays()[name])
    ours = open_npy(tmp_path / "a.npy")
    assert_equal(ours["arr_0"], np.load(tmp_path / "a.npy"))


def test_plain_arrays_are_views_of_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", plain=np.ones((2, 3)), columns=np.asfortranarray(np.ones((2, 3))))
    ours = open_npz(tmp_path / "a.npz")
    assert not ours["plain"].data.flags.owndata and not ours["plain"].data.flags.writeable
    assert ours.nbytes == 96 and ours.mapped_bytes == (tmp_path / "a.npz").stat().st_size
    (tmp_path / "a.npz").unlink()
    assert ours["plain"].array().sum() == 6


# The header of an array


def npy(header: str | bytes, data: bytes = bytes(24), version: bytes = b"\1\0", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else header.encode("latin-1")
    size = len(raw) if length is None else length
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", size) + raw + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"


@pytest.mark.parametrize(
    "raw",
    [
        npy(GOOD),
        npy(GOOD + "   \n"),
        npy('{"shape":(2,3),"fortran_order":False,"descr":"<f4"}'),  # another order, other quotes
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }"),  # Python 2 on Windows
        npy(GOOD, version=b"\2\0"),
        npy(GOOD, version=b"\3\0"),
    ],
)
@pytest.mark.filterwarnings("ignore:Reading `.npy`")
def test_headers_that_other_writers_make(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(raw)
    assert_equal(open_npy(tmp_path / "a.npy")["arr_0"], np.load(tmp_path / "a.npy"))


BROKEN: dict[str, tuple[bytes, type[Exception], str]] = {
    "no magic": (b"\x93NUMPX" + npy(GOOD)[6:], MalformedHeaderError, "not a NumPy array"),
    "only magic": (b"\x93NUMPY", TruncatedFileError, "truncated"),
    "version 4": (npy(GOOD, version=b"\4\0"), MalformedHeaderError, "version 4.0"),
    "version 1.1": (npy(GOOD, version=b"\1\1"), MalformedHeaderError, "version 1.1"),
    "header of 4 GB": (npy(GOOD, version=b"\2\0", length=(1 << 32) - 1), MalformedHeaderError, "claims a header"),
    "header beyond the file": (npy(GOOD, length=5000), TruncatedFileError, "its header ends"),
    "no dictionary": (npy("['descr']"), MalformedHeaderError, "[ stands where { should"),
    "call": (npy("{'descr': exit(), 'fortran_order': False, 'shape': ()}"), MalformedHeaderError, "exit(), "),
    "deep": (npy("{'descr': " + "[" * 5000), UnsupportedTensorTypeError, "records"),
    "deep shape": (npy(GOOD.replace("(2, 3)", "(" * 3000)), MalformedHeaderError, "( stands in the shape"),
    "key twice": (npy(GOOD.replace("'fortran_order': False", "'descr': '<f4'")), MalformedHeaderError, "twice"),
    "key missing": (npy("{'descr': '<f4', 'shape': (2, 3)}"), MalformedHeaderError, "has the keys"),
    "key more": (npy(GOOD.replace("}", "'x': True}")), MalformedHeaderError, "has the keys"),
    "something after": (npy(GOOD + "1"), MalformedHeaderError, "follows the closing brace"),
    "no end": (npy(GOOD[:-1]), MalformedHeaderError, "stands where a key should"),
    "shape of texts": (npy(GOOD.replace("2, 3", "'2', 3")), MalformedHeaderError, "stands in the shape"),
    "shape negative": (npy(GOOD.replace("2, 3", "-2, -3")), MalformedHeaderError, "- stands in the shape"),
    "shape float": (npy(GOOD.replace("2, 3", "2.0, 3")), MalformedHeaderError, "'.0, 3), }' at character"),
    "shape with a zero before": (npy(GOOD.replace("2, 3", "02, 3")), MalformedHeaderError, "the shape is not a tuple"),
    "long in version 3": (
        npy(GOOD.replace("2, 3", "2L, 3L"), version=b"\3\0"),
        MalformedHeaderError,
        "'L, 3L), }' at character",
    ),
    "shape true": (npy(GOOD.replace("2, 3", "True, 6")), MalformedHeaderError, "True stands in the shape"),
    "shape no tuple": (npy(GOOD.replace("(2, 3)", "(6)")), MalformedHeaderError, "not a tuple"),
    "shape of 33": (npy(GOOD.replace("2, 3", "1, " * 33)), MalformedHeaderError, "more than 32 dimensions"),
    "shape overflows": (npy(GOOD.replace("2, 3", f"{1 << 40}, {1 << 40}")), MalformedHeaderError, "2^63 or more"),
    "order a number": (npy(GOOD.replace("False", "0")), MalformedHeaderError, "fortran_order not a truth value"),
    "long in the type": (npy(GOOD.replace("<f4", "<f4L")), UnsupportedTensorTypeError, "'<f4L'"),
    "objects": (npy(GOOD.replace("<f4", "|O")), UnsupportedTensorTypeError, "only pickle could read"),
    "objects of 8": (npy(GOOD.replace("<f4", "|O8")), UnsupportedTensorTypeError, "only pickle could read"),
    "texts": (npy(GOOD.replace("<f4", "<U4")), UnsupportedTensorTypeError, "'<U4'"),
    "void": (npy(GOOD.replace("<f4", "|V4")), UnsupportedTensorTypeError, "'|V4'"),
    "dates": (npy(GOOD.replace("<f4", "<M8[ns]")), UnsupportedTensorTypeError, "'<M8[ns]'"),
    "long double": (npy(GOOD.replace("<f4", "<f16")), UnsupportedTensorTypeError, "'<f16'"),
    "double complex": (npy(GOOD.replace("<f4", "<c16")), UnsupportedTensorTypeError, "'<c16'"),
    "no byte order": (npy(GOOD.replace("<f4", "|f4")), UnsupportedTensorTypeError, "'|f4'"),
    "records": (npy(GOOD.replace("'<f4'", "[('a', '<f4')]")), UnsupportedTensorTypeError, "records"),
    "data cut": (npy(GOOD, bytes(23)), TruncatedFileError, "24 bytes, but holds only 23"),
    "data more": (npy(GOOD, bytes(25)), MalformedHeaderError, "holds 25; to read the file all the same"),
    "pickle": (b"\x80\x04.", MalformedHeaderError, "not a NumPy array"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_broken_rule_of_an_array_is_named(rule: str, tmp_path: Path) -> None:
    raw, error, words = BROKEN[rule]
    path = tmp_path / "a.npy"
    path.write_bytes(raw)
    with pytest.raises(error) as caught:
        open_npy(path)
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            archive.writestr("x.npy", raw)
        with pytest.raises(error) as caught:
            open_npz(tmp_path / "a.npz")
        assert "member 'x.npy'" in str(caught.value)


def test_every_truncation_of_an_array_is_refused(scratch_file: Callable[[bytes, str], Path]) -> None:
    raw = npy(GOOD)
    for length in range(len(raw)):
        with pytest.raises(ModelFileError):
            open_npy(scratch_file(raw[:length], ".npy"))


def test_trailing_bytes_can_be_let_through(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(GOOD, bytes(100)))
    ours = open_npy(tmp_path / "a.npy", lenient={Leniency.TRAILING_BYTES})
    assert_equal(ours["arr_0"], np.load(tmp_path / "a.npy"))


# The archive around arrays


def archive_of(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, raw in members.items():
            archive.writestr(f"{name}.npy", raw)
    return buffer.getvalue()


def test_other_members_can_be_passed_over(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
        archive.writestr("x.npy", npy(GOOD))
    with pytest.raises(MalformedHeaderError, match=r"'readme\.txt' is no array .*'other-members'"):
        open_npz(tmp_path / "a.npz")
    assert list(open_npz(tmp_path / "a.npz", lenient={Leniency.OTHER_MEMBERS})) == ["x"]


def test_a_bomb_is_told_by_its_directory(tmp_path: Path) -> None:
    zeros = 80 << 20
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as member,
    ):
        member.write(npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({zeros},)}}", b""))
        for _ in range(zeros >> 20):
            member.write(bytes(1 << 20))
    assert (tmp_path / "a.npz").stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedHeaderError, match="would expand to 83,886,"):
            open_npz(tmp_path / "a.npz")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert open_npz(tmp_path / "a.npz", lenient={Leniency.LARGE_EXPANSION})["x"].nbytes == zeros


def test_an_array_that_expands_beyond_its_promise_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(GOOD, bytes(4000)))
    raw, promised = buffer.getvalue(), struct.pack("<I", len(npy(GOOD, bytes(4000))))
    (tmp_path / "a.npz").write_bytes(raw.replace(promised, struct.pack("<I", 200)))
    with pytest.raises(MalformedHeaderError, match="does not expand to the 200 bytes"):
        open_npz(tmp_path / "a.npz")


def test_damage_in_a_compressed_array_is_noticed(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(GOOD, np.arange(6, dtype=np.float32).tobytes()))
    raw = bytearray(buffer.getvalue())
    start = raw.index(b"x.npy") + 5
    for position in range(start, raw.index(b"PK\1\2") - 1):
        changed = raw.copy()
        changed[position] ^= 0x40
        (tmp_path / "a.npz").write_bytes(changed)
        with pytest.raises(ModelFileError):
            open_npz(tmp_path / "a.npz")


def test_every_truncation_of_an_archive_is_refused(scratch_file: Callable[[bytes, str], Path]) -> None:
    raw = archive_of(a=npy(GOOD), b=npy(GOOD))
    for length in range(len(raw)):
        with pytest.raises(ModelFileError):
            open_npz(scratch_file(raw[:length], ".npz"))
