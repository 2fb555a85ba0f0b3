"""GGUF, llama.cpp's container: metadata, a tensor table, then the tensors' bytes, aligned.

    "GGUF"  version u32  num_tensors u64  num_keys u64
    num_keys    × (key string, value type u32, value)
    num_tensors × (name string, num_dims u32, dims u64…, type u32, offset u64)
    padding to `general.alignment`, then tensor data; offsets count from here

Dimensions are written fastest first (`ne` order), so a weight that maps K inputs to N outputs is written [K, N]; we
show it row-major as (N, K). Quantized blocks stay as they are in the file: reading a model costs its header.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from aie_loader.errors import MalformedHeaderError, TruncatedFileError, UnsupportedTensorTypeError
from aie_loader.formats.checkpoint import Checkpoint, TensorInfo, matrices
from aie_loader.formats.gguf_cursor import HeaderCursor, ValueType
from aie_loader.formats.gguf_split import check_part, check_whole, split_count, split_paths
from aie_loader.formats.gguf_types import TYPE_NUMBERS, UNSUPPORTED_TYPES, supported_type
from aie_loader.formats.leniency import STRICT, Leniency, remedy
from aie_loader.formats.source import SourceFile
from aie_tensor import DType, Matrix

__all__ = ["GGUFHeader", "open_gguf", "read_gguf_header"]

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMS = 4
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_NAME_BYTES = 1024
_MAX_DIM = 1 << 48
_LEAST_KEY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything before the tensor data, validated against the size of the file."""

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[TensorInfo, ...]  # in the order of the file's table
    alignment: int
    data_offset: int  # where tensor data starts
    file_bytes: int


def read_gguf_header(path: Path, *, lenient: Collection[Leniency] = STRICT) -> GGUFHeader:
    """Metadata and tensor table of one GGUF file. Touches no tensor data and maps nothing."""
    with SourceFile(path) as source:
        return _read_header(source, lenient)


def open_gguf(path: Path, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    """Validate the header, then map the file; the result's matrices stay valid after `close()`.

    When `path` is the first of several files that form a model, its sisters beside it are opened, too.
    """
    header, tensors = _open_part(path, lenient)
    mapped_bytes = header.file_bytes
    count = split_count(path, header.metadata)
    if count == 1:
        return Checkpoint(path, "gguf", header.metadata, tensors, (path,), mapped_bytes)
    paths = split_paths(path, count)
    check_part(path, header.metadata, 0, count)
    for number, part in enumerate(paths[1:], start=1):
        part_header, more = _open_part(part, lenient)
        check_part(part, part_header.metadata, number, count)
        twice = next((name for name in more if name in tensors), None)
        if twice is not None:
            raise MalformedHeaderError(f"{part}: tensor {twice!r} is also in another file of the model")
        tensors |= more
        mapped_bytes += part_header.file_bytes
    check_whole(path, header.metadata, len(tensors))
    return Checkpoint(path, "gguf", header.metadata, tensors, tuple(paths), mapped_bytes)


def _open_part(path: Path, lenient: Collection[Leniency]) -> tuple[GGUFHeader, dict[str, Matrix]]:
    with SourceFile(path) as source:
        header = _read_header(source, lenient)
        data = source.map()
    return header, matrices(data, header.tensors)


def _read_header(source: SourceFile, lenient: Collection[Leniency]) -> GGUFHeader:
    cursor = HeaderCursor(source)
    version = _read_version(source, cursor)
    num_tensors = cursor.count("the number of tensors", _LEAST_TENSOR_BYTES)
    num_keys = cursor.count("the number of metadata keys", _LEAST_KEY_BYTES)
    metadata: dict[str, object] = {}
    for index in range(num_keys):
        key = cursor.string(f"metadata key {index}")
        if not key or len(key.encode()) > _MAX_KEY_BYTES:
            raise MalformedHeaderError(f"{source.path}: metadata key {index} is empty or longer than {_MAX_KEY_BYTES}")
        if key in metadata:
            raise MalformedHeaderError(f"{source.path}: metadata key {key!r} occurs twice")
        what = f"metadata value {key!r:.80}"  # short, since it is repeated for each element of an array
        kind = cursor.value_type(what)
        if key == "general.alignment" and kind is not ValueType.UINT32:
            raise MalformedHeaderError(f"{source.path}: general.alignment is a {kind.name}, not a UINT32")
        metadata[key] = cursor.value(kind, what)
    alignment = _alignment(source.path, metadata)
    rows = [_read_tensor_row(source.path, cursor, index) for index in range(num_tensors)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = tuple(_placed(source, row, data_offset, alignment, lenient) for row in rows)
    _check_names(source.path, tensors)
    _check_gap_free(source, tensors, data_offset, alignment, lenient)
    return GGUFHeader(version, metadata, tensors, alignment, data_offset, source.size_bytes)


def _read_version(source: SourceFile, cursor: HeaderCursor) -> int:
    magic = cursor.bytes(4, "the magic number")
    if magic not in (b"GGUF", b"FUGG"):
        raise MalformedHeaderError(f"{source.path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'")
    version = cursor.u32("the version")
    # A small number read with the wrong byte order has its low half empty.
    if magic == b"FUGG" or (version and version & 0xFFFF == 0):
        raise MalformedHeaderError(f"{source.path} is a big-endian GGUF file; only little-endian ones are supported")
    if version not in _VERSIONS:
        raise MalformedHeaderError(f"{source.path} has GGUF version {version}; versions 2 and 3 are supported")
    return version


def _alignment(path: Path, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise MalformedHeaderError(
            f"{path}: general.alignment is {alignment!r}, not a power of two from 8 to {_MAX_ALIGNMENT}"
        )
    return alignment


def _read_tensor_row(path: Path, cursor: HeaderCursor, index: int) -> TensorInfo:
    """One row of the table; `offset` is still relative to the data section."""
    name = cursor.string(f"the name of tensor {index}")
    if not name or len(name.encode()) > _MAX_NAME_BYTES:
        raise MalformedHeaderError(f"{path}: the name of tensor {index} is empty or over {_MAX_NAME_BYTES} bytes")
    num_dims = cursor.u32(f"the number of dimensions of {name!r}")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise MalformedHeaderError(f"{path}: tensor {name!r} has {num_dims} dimensions; 1 to {_MAX_DIMS} are allowed")
    dims = tuple(cursor.u64(f"the dimensions of {name!r}") for _ in range(num_dims))
    if not all(1 <= dim <= _MAX_DIM for dim in dims):
        raise MalformedHeaderError(f"{path}: tensor {name!r} has dimensions {list(dims)}; each must be 1 to {_MAX_DIM}")
    dtype = _dtype(path, name, cursor.u32(f"the type of {name!r}"))
    if dims[0] % dtype.block_size:
        raise MalformedHeaderError(
            f"{path}: tensor {name!r} has rows of {dims[0]} values, not whole {dtype.name} blocks of {dtype.block_size}"
        )
    num_values = 1
    for dim in dims:
        num_values *= dim
    num_bytes = num_values // dtype.block_size * dtype.block_bytes
    return TensorInfo(name, dtype, dims[::-1], cursor.u64(f"the offset of {name!r}"), num_bytes)


def _dtype(path: Path, name: str, code: int) -> DType:
    dtype = supported_type(code)
    if dtype is not None:
        return dtype
    label = f"type {UNSUPPORTED_TYPES[code]}" if code in UNSUPPORTED_TYPES else f"the unknown type number {code}"
    known = ", ".join(dtype.name for dtype in TYPE_NUMBERS)
    raise UnsupportedTensorTypeError(f"{path}: tensor {name!r} has {label}; the types that can be read are {known}")


def _placed(
    source: SourceFile, row: TensorInfo, data_offset: int, alignment: int, lenient: Collection[Leniency]
) -> TensorInfo:
    if row.offset % alignment and Leniency.UNALIGNED_TENSORS not in lenient:
        raise MalformedHeaderError(
            f"{source.path}: tensor {row.name!r} starts at offset {row.offset}, which is not aligned to {alignment}; "
            f"{remedy(Leniency.UNALIGNED_TENSORS)}"
        )
    offset = data_offset + row.offset
    if offset + row.num_bytes > source.size_bytes:
        raise TruncatedFileError(
            f"{source.path} is truncated: tensor {row.name!r} ends at byte {offset + row.num_bytes:,}, "
            f"but the file has {source.size_bytes:,}"
        )
    return TensorInfo(row.name, row.dtype, row.shape, offset, row.num_bytes)


def _check_names(path: Path, tensors: tuple[TensorInfo, ...]) -> None:
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise MalformedHeaderError(f"{path}: tensor {tensor.name!r} occurs twice")
        names.add(tensor.name)


def _check_gap_free(
    source: SourceFile,
    tensors: tuple[TensorInfo, ...],
    data_offset: int,
    alignment: int,
    lenient: Collection[Leniency],
) -> None:
    """Tensors must cover the data, with nothing between them but padding: no byte twice, no place to hide bytes in."""
    position, before = data_offset, "the header"
    loose = Leniency.UNALIGNED_TENSORS in lenient
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        if tensor.offset < position and Leniency.SHARED_TENSORS not in lenient:
            raise MalformedHeaderError(
                f"{source.path}: tensors {before!r} and {tensor.name!r} overlap; {remedy(Leniency.SHARED_TENSORS)}"
            )
        padding = alignment - 1 if loose else -position % alignment
        if tensor.offset > position + padding and Leniency.HOLES not in lenient:
            raise MalformedHeaderError(
                f"{source.path}: {tensor.offset - position:,} bytes between {before} and tensor {tensor.name!r} "
                f"belong to no tensor; {remedy(Leniency.HOLES)}"
            )
        position, before = max(position, tensor.offset + tensor.num_bytes), tensor.name
    padded = position + -position % alignment
    if source.size_bytes > padded and Leniency.TRAILING_BYTES not in lenient:
        raise MalformedHeaderError(
            f"{source.path}: {source.size_bytes - padded:,} bytes after the last tensor belong to no tensor; "
            f"{remedy(Leniency.TRAILING_BYTES)}"
        )
