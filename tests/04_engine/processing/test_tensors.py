"""Tensors of the open inference protocol, there and back, and those that are none."""

from typing import Any

import pytest

from aie_engine import InvalidInputError
from aie_engine.processing import (
    datatype_of,
    tensor_from_bytes,
    tensor_from_json,
    tensor_to_bytes,
)


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "UINT16", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64"])
def test_tensors_come_back_as_they_went(datatype: str) -> None:
    values: list[Any] = [True, False] if datatype == "BOOL" else [1, 2]
    if datatype != "FP16":
        tensor = tensor_from_json("x", datatype, [1, 2], values)
        assert tensor.array.tolist() == [values] and datatype_of(tensor.array) == datatype
        assert tensor_from_bytes("x", datatype, [1, 2], tensor_to_bytes(tensor.array)).array.tolist() == [values]
    else:
        assert tensor_from_bytes("x", datatype, [2], b"\0<\0@").array.tolist() == values


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP99", [1], [1]), ("FP32", [2], [1]), ("FP32", [1, 2], [[1], [2]]), ("FP32", [], [1]), ("FP32", [-1], [1]),
        ("FP32", [1], "1"), ("FP32", [1], ["1"]), ("FP32", [1], [True]), ("INT8", [1], [128]), ("INT32", [1], [1.5]),
        ("UINT8", [1], [-1]), ("BOOL", [1], [1]), ("BYTES", [1], [1]), ("FP16", [1], [1]), ("FP32", [2], [[1], 2]),
        ("FP32", [1] * 17, [1]), ("FP32", [1], [None]), ("FP32", [1 << 62, 4], [1]),
    ],
)  # fmt: skip
def test_bad_tensors_in_json(datatype: str, shape: list[int], data: object) -> None:
    with pytest.raises(InvalidInputError):
        tensor_from_json("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP32", [2], b"\0" * 4), ("FP32", [1 << 40], b""), ("BYTES", [1], b"\5\0\0\0abc"), ("BYTES", [2], b"\0\0\0\0"),
        ("BYTES", [1], b"\0\0\0\0x"), ("BYTES", [1 << 40], b""), ("BYTES", [1], b"\0\0"),
    ],
)  # fmt: skip
def test_bad_tensors_in_bytes(datatype: str, shape: list[int], data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        tensor_from_bytes("x", datatype, shape, data)


def test_whole_numbers_of_64_bits_in_json() -> None:
    """NumPy makes floats of a list in which one number needs the last bit and another does not."""
    most = 2**64 - 1
    for data in ([most], [1, most], [2**63, 1, 0], [2**63 - 1, 2**63]):
        assert tensor_from_json("x", "UINT64", [len(data)], data).array.tolist() == data
    assert tensor_from_json("x", "UINT64", [2, 1], [[1], [most]]).array.tolist() == [[1], [most]]
    for wrong in ([2**64], [2**63, -1], [2**63, 1.5], [2**63, 1.0]):
        with pytest.raises(InvalidInputError, match="x"):
            tensor_from_json("x", "UINT64", [len(wrong)], wrong)
    with pytest.raises(InvalidInputError, match="INT64"):
        tensor_from_json("x", "INT64", [2], [2**63, -1])
