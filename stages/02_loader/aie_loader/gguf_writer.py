"""Writing GGUF version 3: enough of the format to make model files for tests, demonstrations and conversion.

Layout, all little-endian (source: the GGUF specification, ggml/docs/gguf.md):

    "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata:  key string | value type u32 | value                       (string = length u64 + UTF-8)
    tensors:   name string | dimension count u32 | dimensions u64 ... | type u32 | offset u64
    padding to `general.alignment` (32 unless stated) | tensor data, each tensor padded the same way

Dimensions are written fastest first, the reverse of a NumPy shape. Offsets count from the start of the tensor data.
"""

import os
import secrets
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from aie_tensor import DType, Matrix

__all__ = ["write_gguf"]

_ALIGNMENT = 32
_TENSOR_TYPES = {
    DType.F32: 0, DType.F16: 1, DType.Q4_0: 2, DType.Q4_1: 3, DType.Q8_0: 8,
    DType.I8: 24, DType.I16: 25, DType.I32: 26, DType.I64: 27, DType.F64: 28, DType.BF16: 30,
}  # fmt: skip
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _I64 = 4, 5, 6, 7, 8, 9, 11


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, Matrix]) -> Path:
    """Write one GGUF file; it appears under `path` complete or not at all.

    Metadata values may be bool, int, float, str, or non-empty sequences of one of those. Ints become u32 where they
    fit, in arrays i32; anything larger or negative becomes i64. Raises TypeError for other values: that would be
    our own bug.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            _write(file, metadata, tensors)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _write(file: BinaryIO, metadata: Mapping[str, object], tensors: Mapping[str, Matrix]) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + _tagged(value))
    offset = 0
    for name, matrix in tensors.items():
        dimensions = matrix.shape[::-1]
        file.write(_string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
        file.write(struct.pack("<IQ", _TENSOR_TYPES[matrix.dtype], offset))
        offset += _padded(matrix.nbytes)
    file.write(b"\0" * (_padded(file.tell()) - file.tell()))
    for matrix in tensors.values():
        file.write(matrix.data.tobytes())
        file.write(b"\0" * (_padded(matrix.nbytes) - matrix.nbytes))


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _tagged(value: object) -> bytes:
    """A metadata value with its type number in front."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        kind = _kind(value, small_int=_U32)
        return struct.pack("<I", kind) + _scalar(kind, value)
    kinds = {_kind(item, small_int=_I32) for item in value}
    if kinds == {_I32, _I64}:
        kinds = {_I64}
    if len(kinds) != 1:
        raise TypeError(f"a GGUF array needs items of one type, got {value!r:.80}")
    kind = kinds.pop()
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_scalar(kind, item) for item in value)


def _kind(value: object, *, small_int: int) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        low, high = (0, 1 << 32) if small_int == _U32 else (-(1 << 31), 1 << 31)
        return small_int if low <= value < high else _I64
    if isinstance(value, float):
        return _F32
    if isinstance(value, str):
        return _STRING
    raise TypeError(f"GGUF metadata cannot hold a {type(value).__name__}")


def _scalar(kind: int, value: object) -> bytes:
    if isinstance(value, str):
        return _string(value)
    return struct.pack({_U32: "<I", _I32: "<i", _I64: "<q", _F32: "<f", _BOOL: "<?"}[kind], value)
