"""safetensors: a JSON table of tensors, then their bytes, without a gap.

    header_bytes u64 | JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {…}} | data

Stricter than the reference library where that is lenient (`Leniency` names each difference), equal to it elsewhere.
Order of checks: sizes first, then structure, then arithmetic, and only then is the file mapped.

Layout: the format section of the safetensors documentation.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from aie_loader.errors import MalformedHeaderError, TruncatedFileError, UnsupportedTensorTypeError
from aie_loader.formats.checkpoint import Checkpoint, TensorInfo, matrices
from aie_loader.formats.leniency import STRICT, Leniency, remedy
from aie_loader.formats.source import SourceFile, shown
from aie_loader.formats.strict_json import parse_json
from aie_tensor import DType

__all__ = ["DTYPES", "SafetensorsHeader", "open_safetensors", "read_safetensors_header"]

MAX_HEADER_BYTES = 100_000_000  # the reference library's limit
_MAX_DEPTH = 3  # {name: {shape: [...]}}
_MAX_DIMS = 32
_MAX_VALUES = 1 << 63
DTYPES = {dtype.name: dtype for dtype in DType if not dtype.is_quantized}  # the format's names are ours
_FIELDS = {"dtype", "shape", "data_offsets"}
_FORMATS_OWN_KEYS = _FIELDS | {"__metadata__"}
_JSON_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The validated tensor table; `offset` of each row counts from the start of the file."""

    metadata: Mapping[str, str]  # `__metadata__`, empty where there is none
    tensors: tuple[TensorInfo, ...]  # in the order of their bytes
    data_offset: int
    file_bytes: int


def read_safetensors_header(path: Path, *, lenient: Collection[Leniency] = STRICT) -> SafetensorsHeader:
    """Header of one file. Touches no tensor data and maps nothing."""
    with SourceFile(path) as source:
        return _read_header(source, lenient)


def open_safetensors(path: Path, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    """Validate the header, then map the file; the result's matrices stay valid after `close()`."""
    with SourceFile(path) as source:
        header = _read_header(source, lenient)
        data = source.map()
    return Checkpoint(path, "safetensors", dict(header.metadata), matrices(data, header.tensors), (path,), data.nbytes)


def _read_header(source: SourceFile, lenient: Collection[Leniency]) -> SafetensorsHeader:
    path, size = source.path, source.size_bytes
    if size < 8:
        raise TruncatedFileError(f"{path} is truncated: a safetensors file has at least 8 bytes, this one has {size}")
    header_bytes = int.from_bytes(source.read(0, 8), "little")
    if not 2 <= header_bytes <= MAX_HEADER_BYTES:
        raise MalformedHeaderError(
            f"{path} is not a safetensors file: it claims a header of {header_bytes:,} bytes; "
            f"2 to {MAX_HEADER_BYTES:,} are allowed"
        )
    if 8 + header_bytes > size:
        raise TruncatedFileError(f"{path} is truncated: the header has {header_bytes:,} bytes, the file has {size:,}")
    table = _parse_table(path, source.read(8, header_bytes), lenient)
    metadata = _metadata(path, table.pop("__metadata__", {}), lenient)
    data_offset = 8 + header_bytes
    rows = [_row(path, name, entry, size - data_offset, lenient) for name, entry in table.items()]
    tensors = _gap_free(path, rows, size - data_offset)
    placed = tuple(TensorInfo(t.name, t.dtype, t.shape, data_offset + t.offset, t.num_bytes) for t in tensors)
    return SafetensorsHeader(metadata, placed, data_offset, size)


def _parse_table(path: Path, raw: bytes, lenient: Collection[Leniency]) -> dict[str, object]:
    if not raw.startswith(b"{"):
        if raw.lstrip(_JSON_SPACE)[:1] != b"{":
            raise MalformedHeaderError(f"{path}: the header does not start with '{{'")
        if Leniency.HEADER_SPACE not in lenient:
            raise MalformedHeaderError(
                f"{path}: the header does not start with '{{' but with white space; {remedy(Leniency.HEADER_SPACE)}"
            )
    shadowed: list[tuple[str, object]] | None = [] if Leniency.DUPLICATE_KEYS in lenient else None
    try:
        table = parse_json(
            raw,
            f"{path}: the header",
            max_depth=_MAX_DEPTH,
            parse_int=_unsigned,
            shadowed=shadowed,
            unrepeatable=_FORMATS_OWN_KEYS,
        )
    except MalformedHeaderError as error:
        if "occurs twice" not in str(error) or shadowed is not None:
            raise
        raise MalformedHeaderError(f"{error}; {remedy(Leniency.DUPLICATE_KEYS)}") from error
    assert isinstance(table, dict), type(table)  # it starts with a brace and is valid JSON
    for name, entry in shadowed or ():
        _fields(f"{path}: tensor {shown(name)}", entry, lenient)
    return table


def _unsigned(digits: str) -> object:
    """JSON's integers, except that −0 is none: the format's are unsigned."""
    return int(digits) if digits != "-0" else digits


def _metadata(path: Path, value: object, lenient: Collection[Leniency]) -> dict[str, str]:
    if value is None:
        if Leniency.NULL_METADATA in lenient:
            return {}
        raise MalformedHeaderError(
            f"{path}: __metadata__ is null, not an object of strings; {remedy(Leniency.NULL_METADATA)}"
        )
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise MalformedHeaderError(f"{path}: __metadata__ is not an object of strings")
    return value


def _row(path: Path, name: str, entry: object, data_bytes: int, lenient: Collection[Leniency]) -> TensorInfo:
    """One tensor of the table; `offset` counts from the start of the data."""
    where = f"{path}: tensor {shown(name)}"
    dtype, shape, (begin, end) = _fields(where, entry, lenient)
    if len(shape) > _MAX_DIMS:
        raise MalformedHeaderError(f"{where} has {len(shape)} dimensions; at most {_MAX_DIMS} are allowed")
    num_values = 1
    for dim in shape:
        num_values *= dim
        if num_values >= _MAX_VALUES:
            raise MalformedHeaderError(f"{where} has 2^63 or more values")
    if begin > end:
        raise MalformedHeaderError(f"{where} has data_offsets that are not [begin, end] with begin <= end")
    if end > data_bytes:
        raise TruncatedFileError(
            f"{path} is truncated: tensor {shown(name)} ends at byte {end:,} of the data, "
            f"but the file has {data_bytes:,}"
        )
    num_bytes = _num_bytes(where, dtype, shape, num_values)
    if end - begin != num_bytes:
        raise MalformedHeaderError(
            f"{where} is {dtype.name} {list(shape)}, which is {num_bytes:,} bytes, but spans {end - begin:,}"
        )
    return TensorInfo(name, dtype, shape, begin, num_bytes)


def _fields(where: str, entry: object, lenient: Collection[Leniency]) -> tuple[DType, tuple[int, ...], tuple[int, int]]:
    """dtype, shape and data_offsets of one entry, each of the right kind; what they mean together is not looked at."""
    if not isinstance(entry, dict) or not entry.keys() >= _FIELDS:
        raise MalformedHeaderError(f"{where} does not have exactly the fields dtype, shape and data_offsets")
    if len(entry) > len(_FIELDS) and Leniency.UNKNOWN_FIELDS not in lenient:
        raise MalformedHeaderError(
            f"{where} does not have exactly the fields dtype, shape and data_offsets, but also "
            f"{sorted(entry.keys() - _FIELDS)[0]!r:.40}; {remedy(Leniency.UNKNOWN_FIELDS)}"
        )
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnsupportedTensorTypeError(
            f"{where} has the dtype {str(dtype)[:40]!r}; the dtypes that can be read are {', '.join(DTYPES)}"
        )
    shape = _integers(where, "shape", entry["shape"])
    offsets = _integers(where, "data_offsets", entry["data_offsets"])
    if len(offsets) != 2:
        raise MalformedHeaderError(f"{where} has data_offsets that are not [begin, end] with begin <= end")
    return DTYPES[dtype], shape, (offsets[0], offsets[1])


def _num_bytes(where: str, dtype: DType, shape: tuple[int, ...], num_values: int) -> int:
    """Rows of the types below a byte must end on a byte, or a row could not be addressed."""
    if (shape[-1] if shape else 1) % dtype.block_size:
        raise MalformedHeaderError(
            f"{where} is {dtype.name} {list(shape)}, whose rows do not end on a byte: "
            f"{dtype.block_size} values fill {dtype.block_bytes} bytes"
        )
    return dtype.nbytes(num_values)


def _integers(where: str, field: str, value: object) -> tuple[int, ...]:
    # `type(x) is int`: bool is a subclass of int, and [true, 4] is not a shape.
    if not isinstance(value, list) or not all(type(x) is int and 0 <= x < _MAX_VALUES for x in value):
        raise MalformedHeaderError(f"{where}: {field} is not a list of integers from 0 to 2^63 - 1")
    return tuple(value)


def _gap_free(path: Path, rows: list[TensorInfo], data_bytes: int) -> list[TensorInfo]:
    """Sorted by offset, tensors must cover the data exactly: no hole to hide bytes in, no byte owned twice."""
    rows.sort(key=lambda row: (row.offset, row.offset + row.num_bytes))
    position = 0
    for row in rows:
        if row.offset != position:
            problem = "overlaps the tensor before it" if row.offset < position else "leaves a hole before it"
            raise MalformedHeaderError(
                f"{path}: tensor {shown(row.name)} begins at byte {row.offset:,} of the data instead of {position:,}: "
                f"it {problem}"
            )
        position += row.num_bytes
    if position != data_bytes:
        raise MalformedHeaderError(f"{path}: {data_bytes - position:,} bytes after the last tensor belong to no tensor")
    return rows
