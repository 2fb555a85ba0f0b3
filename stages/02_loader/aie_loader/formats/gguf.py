"""GGUF, llama.cpp's container: metadata, a tensor table, then the tensors' bytes, aligned.

    "GGUF"  version u32  num_tensors u64  num_keys u64
    num_keys    × (key string, value type u32, value)
    num_tensors × (name string, num_dims u32, dims u64…, type u32, offset u64)
    padding to `general.alignment`, then tensor data; offsets count from here

Dimensions are written fastest first (`ne` order), so a weight that maps K inputs to N outputs is written [K, N]; we
show it row-major as (N, K). Quantized blocks stay as they are in the file: reading a model costs its header.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from aie_loader.errors import MalformedHeaderError, TruncatedFileError, UnsupportedTensorTypeError
from aie_loader.formats.checkpoint import TensorInfo, matrices
from aie_loader.formats.gguf_cursor import HeaderCursor
from aie_loader.formats.source import SourceFile
from aie_tensor import DType, Matrix

__all__ = ["GGUFCheckpoint", "GGUFHeader", "open_gguf", "read_gguf_header"]

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMS = 4
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_NAME_BYTES = 1024
_MAX_DIM = 1 << 48
_LEAST_KEY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_SUPPORTED = {
    0: DType.F32,
    1: DType.F16,
    2: DType.Q4_0,
    3: DType.Q4_1,
    8: DType.Q8_0,
    24: DType.I8,
    25: DType.I16,
    26: DType.I32,
    27: DType.I64,
    28: DType.F64,
    30: DType.BF16,
}
# Names of what we do not read, so that the error says "Q4_K" and not "type 12".
_UNSUPPORTED = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything before the tensor data, validated against the size of the file."""

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[TensorInfo, ...]  # in the order of the file's table
    alignment: int
    data_offset: int  # where tensor data starts
    file_bytes: int


@dataclass(slots=True)
class GGUFCheckpoint:
    """An opened GGUF file; `tensors` are views of the mapped file."""

    path: Path
    header: GGUFHeader
    tensors: dict[str, Matrix]

    @property
    def metadata(self) -> Mapping[str, object]:
        return self.header.metadata

    @property
    def mapped_bytes(self) -> int:
        return self.header.file_bytes

    def close(self) -> None:
        self.tensors = {}


def read_gguf_header(path: Path) -> GGUFHeader:
    """Metadata and tensor table of a GGUF file. Touches no tensor data and maps nothing."""
    with SourceFile(path) as source:
        return _read_header(source)


def open_gguf(path: Path) -> GGUFCheckpoint:
    """Validate the header, then map the file; the result's matrices stay valid after `close()`."""
    with SourceFile(path) as source:
        header = _read_header(source)
        data = source.map()
    return GGUFCheckpoint(path, header, matrices(data, header.tensors))


def _read_header(source: SourceFile) -> GGUFHeader:
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
        what = f"metadata value {key!r}"
        metadata[key] = cursor.value(cursor.value_type(what), what)
    alignment = _alignment(source.path, metadata)
    rows = [_read_tensor_row(source.path, cursor, index) for index in range(num_tensors)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = tuple(_placed(source, row, data_offset, alignment) for row in rows)
    _check_disjoint(source.path, tensors)
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
    if code in _SUPPORTED:
        return _SUPPORTED[code]
    label = f"type {_UNSUPPORTED[code]}" if code in _UNSUPPORTED else f"the unknown type number {code}"
    known = ", ".join(dtype.name for dtype in _SUPPORTED.values())
    raise UnsupportedTensorTypeError(f"{path}: tensor {name!r} has {label}; the types that can be read are {known}")


def _placed(source: SourceFile, row: TensorInfo, data_offset: int, alignment: int) -> TensorInfo:
    if row.offset % alignment:
        raise MalformedHeaderError(
            f"{source.path}: tensor {row.name!r} starts at offset {row.offset}, which is not aligned to {alignment}"
        )
    offset = data_offset + row.offset
    if offset + row.num_bytes > source.size_bytes:
        raise TruncatedFileError(
            f"{source.path} is truncated: tensor {row.name!r} ends at byte {offset + row.num_bytes:,}, "
            f"but the file has {source.size_bytes:,}"
        )
    return TensorInfo(row.name, row.dtype, row.shape, offset, row.num_bytes)


def _check_disjoint(path: Path, tensors: tuple[TensorInfo, ...]) -> None:
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise MalformedHeaderError(f"{path}: tensor {tensor.name!r} occurs twice")
        names.add(tensor.name)
    for first, second in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if first.offset + first.num_bytes > second.offset:
            raise MalformedHeaderError(f"{path}: tensors {first.name!r} and {second.name!r} overlap")
