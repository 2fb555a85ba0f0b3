"""Tensors as the open inference protocol (version 2) sends them: a name, a datatype, a shape, and numbers as JSON or as
bytes, little-endian and row by row.

BYTES has no NumPy type: each element is its length in four bytes and then itself, or in JSON a text.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aie_tensor import InvalidInputError

__all__ = ["DATATYPES", "Tensor", "datatype_of", "numbers", "tensor_from_bytes", "tensor_from_json", "tensor_to_bytes"]

Array = npt.NDArray[Any]

DATATYPES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    "BYTES": "O",
}  # fmt: skip
_NAMES: Final = {np.dtype(code): name for name, code in DATATYPES.items()}
_MAX_AXES: Final = 16
_MAX_ELEMENTS: Final = 1 << 40
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`array` has the type that `datatype` names; for BYTES objects, each `bytes`."""

    name: str
    datatype: str
    array: Array


def datatype_of(array: Array) -> str:
    """The protocol's name. Raises `InvalidInputError` for a type that it does not have."""
    name = _NAMES.get(array.dtype)
    if name is not None:
        return name
    raise InvalidInputError(f"the protocol has no datatype for {array.dtype}")


def tensor_from_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Tensor:
    """data: one list of all numbers, row by row, or lists in lists as the shape says. Raises `InvalidInputError`."""
    code, count = _checked(name, datatype, shape)
    if not isinstance(data, list):
        raise InvalidInputError(f"{name}: data must be a list, or come as binary data.", param=name)
    if datatype == "FP16":
        raise InvalidInputError(f"{name}: FP16 has no form in JSON; send it as binary data.", param=name)
    if datatype == "BYTES":
        elements = [_as_bytes(name, element) for element in _flat(data)]
        array = _objects(elements)
    else:
        array = numbers(name, data)
        if datatype == "UINT64" and array.dtype.kind == "f":
            array = _unsigned(data, array)
        if array.size:
            array = _cast(name, array, datatype, code)
    if array.size != count:
        raise InvalidInputError(f"{name}: shape {list(shape)} has {count} elements, data has {array.size}.", param=name)
    if array.ndim > 1 and array.shape != tuple(shape):
        raise InvalidInputError(f"{name}: data is {list(array.shape)}, shape says {list(shape)}.", param=name)
    return Tensor(name, datatype, array.reshape(tuple(shape)))


def tensor_from_bytes(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
    """Raises `InvalidInputError` unless `data` is exactly what datatype and shape say."""
    code, count = _checked(name, datatype, shape)
    if datatype == "BYTES":
        array = _objects(list(_elements(name, data, count)))
    else:
        expected = count * np.dtype(code).itemsize
        if len(data) != expected:
            raise InvalidInputError(
                f"{name}: {datatype} of shape {list(shape)} has {expected} bytes; {len(data)} came.", param=name
            )
        array = np.frombuffer(data, dtype=code)
    return Tensor(name, datatype, array.reshape(tuple(shape)))


def tensor_to_bytes(array: Array) -> bytes:
    """Little-endian, row by row; of objects, each with its length before it."""
    if array.dtype == object:
        return b"".join(_LENGTH.pack(len(element)) + element for element in array.ravel().tolist())
    little = array.dtype.newbyteorder("<")
    return np.ascontiguousarray(array, dtype=little).tobytes()


def numbers(name: str, data: object, *, missing: bool = False) -> Array:
    """Lists in lists of numbers, as parsed JSON has them, as an array of int64, uint64, bool or float64.

    missing: null is allowed and becomes NaN. Raises `InvalidInputError` for rows of different lengths, and for anything
    that is no number.
    """
    try:
        array = np.asarray(data)
        if missing and array.dtype == object:
            flat = [np.nan if value is None else value for value in array.ravel().tolist()]
            array = np.asarray(flat).reshape(array.shape)
    except (ValueError, OverflowError):
        raise InvalidInputError(f"{name} has rows of different lengths, or is nested too deeply.", param=name) from None
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{name} must hold numbers only, in rows of the same length.", param=name)
    return array


def _checked(name: str, datatype: str, shape: Sequence[int]) -> tuple[str, int]:
    code = DATATYPES.get(datatype)
    if code is None:
        raise InvalidInputError(f"{name}: datatype must be one of {', '.join(DATATYPES)}.", param=name)
    if not 1 <= len(shape) <= _MAX_AXES or any(size < 0 for size in shape):
        raise InvalidInputError(f"{name}: shape must have 1 to {_MAX_AXES} sizes, none below 0.", param=name)
    if prod(size or 1 for size in shape) > _MAX_ELEMENTS:  # NumPy refuses that also where one size is 0
        raise InvalidInputError(f"{name}: no tensor can have the shape {list(shape)}.", param=name)
    return code, prod(shape)


def _cast(name: str, array: Array, datatype: str, code: str) -> Array:
    dtype = np.dtype(code)
    wants = {"?": "b", "i": "iu", "u": "iu", "f": "iuf"}["?" if dtype.kind == "b" else dtype.kind]
    if array.dtype.kind not in wants:
        raise InvalidInputError(f"{name}: the data are not {datatype}.", param=name)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise InvalidInputError(
                f"{name}: {datatype} holds {bounds.min}…{bounds.max}; the data have more.", param=name
            )
    with np.errstate(
        over="ignore"
    ):  # what is too large becomes infinite, which is refused where numbers must be finite
        return array.astype(dtype)


def _unsigned(data: list[Any], array: Array) -> Array:
    """Whole numbers of which one needs all 64 bits and another does not: NumPy makes floats of them, which round."""
    flat = list(_flat(data))
    if not all(type(value) is int and 0 <= value < 1 << 64 for value in flat):
        return array  # refused by whoever looks at its type
    return np.array(flat, np.uint64).reshape(array.shape)


def _elements(name: str, data: bytes | memoryview, count: int) -> Iterator[bytes]:
    position, view = 0, memoryview(data)
    for _ in range(count):
        end = position + _LENGTH.size
        size = _LENGTH.unpack(view[position:end])[0] if end <= len(view) else len(view)
        if end + size > len(view):
            raise InvalidInputError(f"{name}: the binary data end before its {count} elements do.", param=name)
        yield bytes(view[end : end + size])
        position = end + size
    if position != len(view):
        raise InvalidInputError(f"{name}: binary data follow after its {count} elements.", param=name)


def _flat(data: list[Any]) -> Iterator[object]:
    for value in data:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _as_bytes(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidInputError(f"{name}: BYTES in JSON are texts.", param=name)
    return value.encode()


def _objects(elements: list[bytes]) -> Array:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array
