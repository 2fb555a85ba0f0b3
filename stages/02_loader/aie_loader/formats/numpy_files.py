"""NumPy's files as checkpoints: `.npz`, an archive of arrays, and `.npy`, a single one.

Arrays that lie uncompressed and row by row in little-endian order are views of the mapped file. Compressed ones are
expanded, column-wise and big-endian ones rearranged; those are copies, and no larger in sum than the file allows.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aie_loader.errors import MalformedHeaderError, TruncatedFileError
from aie_loader.formats.checkpoint import Checkpoint
from aie_loader.formats.leniency import STRICT, Leniency, remedy
from aie_loader.formats.npy import MAX_HEADER_BYTES, NpyHeader, parse_npy_header
from aie_loader.formats.source import SourceFile
from aie_loader.formats.zip_archive import ZipMember, read_member, read_zip_directory
from aie_tensor import Matrix

__all__ = ["open_npy", "open_npz"]

_SUFFIX = ".npy"
_ONLY = "arr_0"  # how `numpy.savez` calls an array without a name
_HEAD_BYTES = MAX_HEADER_BYTES + 12
_FREE_EXPANSION = 64 << 20
_MOST_EXPANSION = 100

Bytes = npt.NDArray[np.uint8]


def open_npy(path: Path, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    """A `.npy` file as a checkpoint of one tensor, `arr_0`."""
    with SourceFile(path) as source:
        header = parse_npy_header(source.read(0, min(_HEAD_BYTES, source.size_bytes)), source.size_bytes, str(path))
        _check_size(header, source.size_bytes, str(path), lenient)
        data = source.map()
    matrix = _matrix(header, data)
    return Checkpoint(path, "numpy", {}, {_ONLY: matrix}, (path,), data.nbytes)


def open_npz(path: Path, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    """All arrays of a `.npz` file, under their members' names without `.npy`. Headers are checked before any array."""
    with SourceFile(path) as source:
        members = read_zip_directory(source, lenient=lenient)
        arrays = {name: member for name, member in members.items() if _is_array(path, name, lenient)}
        _check_expansion(source, arrays, lenient)
        # Uncompressed members first show that they are arrays; only then is anything mapped or expanded.
        headers = {
            name: _read_header(source, member, lenient) for name, member in arrays.items() if not member.compressed
        }
        data = source.map()
        tensors: dict[str, Matrix] = {}
        for name, member in arrays.items():
            if member.compressed:
                raw = read_member(source, member)
                header = parse_npy_header(raw, len(raw), _where(source, name))
                _check_size(header, len(raw), _where(source, name), lenient)
                part = np.frombuffer(raw, np.uint8)
            else:
                header, part = headers[name], data[member.data_offset : member.data_offset + member.num_bytes]
            tensors[name.removesuffix(_SUFFIX)] = _matrix(header, part)
    return Checkpoint(path, "numpy", {}, tensors, (path,), data.nbytes)


def _is_array(path: Path, name: str, lenient: Collection[Leniency]) -> bool:
    if name.endswith(_SUFFIX):
        return True
    if Leniency.OTHER_MEMBERS in lenient:
        return False
    raise MalformedHeaderError(f"{path}: member {name!r} is no array (.npy); {remedy(Leniency.OTHER_MEMBERS)}")


def _check_expansion(source: SourceFile, members: dict[str, ZipMember], lenient: Collection[Leniency]) -> None:
    """A bomb is told by its directory, before a byte of it is expanded."""
    expanded = sum(member.num_bytes for member in members.values() if member.compressed)
    allowed = _FREE_EXPANSION + _MOST_EXPANSION * source.size_bytes
    if expanded > allowed and Leniency.LARGE_EXPANSION not in lenient:
        raise MalformedHeaderError(
            f"{source.path}: its {source.size_bytes:,} bytes would expand to {expanded:,}; {allowed:,} are allowed; "
            f"{remedy(Leniency.LARGE_EXPANSION)}"
        )


def _read_header(source: SourceFile, member: ZipMember, lenient: Collection[Leniency]) -> NpyHeader:
    where = _where(source, member.name)
    head = source.read(member.data_offset, min(_HEAD_BYTES, member.num_bytes))
    header = parse_npy_header(head, member.num_bytes, where)
    _check_size(header, member.num_bytes, where, lenient)
    return header


def _where(source: SourceFile, name: str) -> str:
    return f"{source.path}: member {name!r}"


def _check_size(header: NpyHeader, total_bytes: int, where: str, lenient: Collection[Leniency]) -> None:
    needed, left = header.num_bytes, total_bytes - header.data_offset
    what = f"{where} is {header.dtype.value} {list(header.shape)}, which is {needed:,} bytes"
    if needed > left:
        raise TruncatedFileError(f"{what}, but holds only {left:,}")
    if needed < left and Leniency.TRAILING_BYTES not in lenient:
        raise MalformedHeaderError(f"{what}, but holds {left:,}; {remedy(Leniency.TRAILING_BYTES)}")


def _matrix(header: NpyHeader, data: Bytes) -> Matrix:
    """`data` starts with the array's header."""
    raw = data[header.data_offset : header.data_offset + header.num_bytes]
    native, rank = header.dtype.numpy, len(header.shape)
    assert native is not None, header
    if header.stored == native and (rank < 2 or not header.fortran_order):
        return Matrix(header.dtype, header.shape, raw)
    array = raw.view(header.stored).reshape(header.shape, order="F" if header.fortran_order else "C")
    return Matrix.from_array(array.astype(native, order="C"))
