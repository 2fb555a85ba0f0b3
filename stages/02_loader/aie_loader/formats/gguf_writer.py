"""Writing GGUF version 3, tensor by tensor, so that a model larger than memory can be written.

Layout, all little-endian (source: the GGUF specification, ggml/docs/gguf.md):

    "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata:  key string | value type u32 | value                       (string = length u64 + UTF-8)
    tensors:   name string | dimension count u32 | dimensions u64 ... | type u32 | offset u64
    padding to `general.alignment` (32 unless stated) | tensor data, each tensor padded the same way

Dimensions are written fastest first, the reverse of a NumPy shape. Offsets count from the start of the tensor data.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from aie_loader.formats.gguf_types import TYPE_NUMBERS
from aie_loader.formats.replacing import replacing
from aie_loader.formats.safetensors_writer import PendingTensor
from aie_tensor import InvalidInputError, Matrix

__all__ = ["write_gguf"]

_DEFAULT_ALIGNMENT = 32
_MOST_DIMS = 4
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64 = 4, 5, 6, 7, 8, 9, 10, 11
_PACKED = {_U32: "<I", _I32: "<i", _U64: "<Q", _I64: "<q", _F32: "<f", _BOOL: "<?"}


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, Matrix | PendingTensor]) -> Path:
    """Write one GGUF file; it appears under `path` complete or not at all.

    Metadata values may be bool, int, float, str, or sequences of one of those, also nested and empty ones. Ints become
    u32 where they fit, in arrays i32, else i64, else u64. TypeError for other values: that would be our own bug.
    InvalidInputError for a tensor that the format cannot hold, EnvironmentLacksError when the disk is full.
    """
    path = Path(path)
    _check(tensors)
    header = _header(metadata, tensors)
    with replacing(path) as file:
        alignment = _alignment(metadata)
        file.write(header + bytes(-len(header) % alignment))
        _write_data(file, tensors, alignment)
    return path


def _check(tensors: Mapping[str, Matrix | PendingTensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPE_NUMBERS:
            known = ", ".join(dtype.name for dtype in TYPE_NUMBERS)
            raise InvalidInputError(f"tensor {name!r} is {tensor.dtype.name}; GGUF can hold {known}")
        if not 1 <= len(tensor.shape) <= _MOST_DIMS or 0 in tensor.shape:
            raise InvalidInputError(
                f"tensor {name!r} has the shape {list(tensor.shape)}; GGUF has 1 to {_MOST_DIMS} dimensions, none of 0"
            )


def _header(metadata: Mapping[str, object], tensors: Mapping[str, Matrix | PendingTensor]) -> bytes:
    parts = [b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [_string(key) + _tagged(value) for key, value in metadata.items()]
    offset, alignment = 0, _alignment(metadata)
    for name, tensor in tensors.items():
        dimensions = tensor.shape[::-1]
        parts.append(_string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
        parts.append(struct.pack("<IQ", TYPE_NUMBERS[tensor.dtype], offset))
        offset += tensor.nbytes + -tensor.nbytes % alignment
    return b"".join(parts)


def _write_data(file: BinaryIO, tensors: Mapping[str, Matrix | PendingTensor], alignment: int) -> None:
    for tensor in tensors.values():
        file.write((tensor if isinstance(tensor, Matrix) else tensor.matrix()).data.data)
        file.write(bytes(-tensor.nbytes % alignment))


def _alignment(metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int) and alignment >= 8 and alignment & (alignment - 1) == 0, alignment
    return alignment


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _tagged(value: object) -> bytes:
    """A metadata value with its type number in front."""
    kind = _kind(value, small_int=_U32)
    return struct.pack("<I", kind) + _packed(kind, value)


def _packed(kind: int, value: object) -> bytes:
    if isinstance(value, str):
        return _string(value)
    if kind != _ARRAY:
        return struct.pack(_PACKED[kind], value)
    assert isinstance(value, Sequence), type(value)
    kinds = {_kind(item, small_int=_I32) for item in value} or {_I32}  # an empty array has a type, too
    if kinds == {_I32, _I64}:
        kinds = {_I64}
    if len(kinds) != 1:
        raise TypeError(f"a GGUF array needs items of one type, got {value!r:.80}")
    item_kind = kinds.pop()
    return struct.pack("<IQ", item_kind, len(value)) + b"".join(_packed(item_kind, item) for item in value)


def _kind(value: object, *, small_int: int) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        low, high = (0, 1 << 32) if small_int == _U32 else (-(1 << 31), 1 << 31)
        return small_int if low <= value < high else _I64 if value < 1 << 63 else _U64
    if isinstance(value, float):
        return _F32
    if isinstance(value, str):
        return _STRING
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _ARRAY
    raise TypeError(f"GGUF metadata cannot hold a {type(value).__name__}")
