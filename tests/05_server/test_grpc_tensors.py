"""ModelInfer's tensors, without a port: typed and raw, and what is refused."""

import struct
from typing import Any

import numpy as np
import pytest

from aie_engine import InvalidInputError
from aie_server import ServerConfig
from aie_server.grpc.protocol import METHODS
from aie_server.grpc.schema import Values, decode, encode
from aie_server.grpc.tensors import infer_response, read_tensors

REQUEST, RESPONSE = METHODS["ModelInfer"]
X = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
RAW = struct.pack("<2f", 1, 2)


def read(request: Values) -> Any:
    return read_tensors(decode(REQUEST, encode(REQUEST, request)), ServerConfig())


@pytest.mark.parametrize(
    ("datatype", "field", "sent", "want"),
    [
        ("BOOL", "bool_contents", [True, False], [True, False]),
        ("INT8", "int_contents", [-128, 127], [-128, 127]),
        ("INT16", "int_contents", [-1, 300], [-1, 300]),
        ("INT32", "int_contents", [-(1 << 31), 5], [-(1 << 31), 5]),
        ("INT64", "int64_contents", [-(1 << 63), 1 << 60], [-(1 << 63), 1 << 60]),
        ("UINT8", "uint_contents", [0, 255], [0, 255]),
        ("UINT32", "uint_contents", [0, (1 << 32) - 1], [0, (1 << 32) - 1]),
        ("UINT64", "uint64_contents", [0, (1 << 64) - 1], [0, (1 << 64) - 1]),
        ("FP32", "fp32_contents", RAW, [1, 2]),
        ("FP64", "fp64_contents", struct.pack("<2d", 1, 2), [1, 2]),
        ("BYTES", "bytes_contents", [b"a", b""], [b"a", b""]),
    ],
)
def test_typed_contents(datatype: str, field: str, sent: Any, want: list[Any]) -> None:
    (tensor,) = read({"inputs": [{"name": "x", "datatype": datatype, "shape": [2, 1], "contents": {field: sent}}]})
    assert tensor.name == "x" and tensor.array.shape == (2, 1) and tensor.array.ravel().tolist() == want


def test_raw_contents_in_the_order_of_the_inputs() -> None:
    y = {"name": "y", "datatype": "INT8", "shape": [3]}
    first, second = read({"inputs": [y, X], "raw_input_contents": [b"\x01\x02\xff", RAW]})
    assert first.array.tolist() == [1, 2, -1] and second.array.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"inputs": [X] * 65},
        {"inputs": [{**X, "name": ""}]},
        {"inputs": [X]},
        {"inputs": [X], "raw_input_contents": [RAW, RAW]},
        {"inputs": [X], "raw_input_contents": [RAW[:-1]]},
        {"inputs": [{**X, "contents": {"fp32_contents": RAW}}], "raw_input_contents": [RAW]},
        {"inputs": [{**X, "contents": {"fp32_contents": RAW[:4]}}]},
        {"inputs": [{**X, "contents": {"fp64_contents": RAW}}]},
        {"inputs": [{**X, "contents": {"fp32_contents": RAW, "int_contents": [1]}}]},
        {"inputs": [{**X, "datatype": "FP16"}]},
        {"inputs": [{**X, "datatype": "FP8", "contents": {"fp32_contents": RAW}}]},
        {"inputs": [{**X, "shape": [-1, -2], "contents": {"fp32_contents": RAW}}]},
        {"inputs": [{**X, "shape": [], "contents": {"fp32_contents": RAW}}]},
        {"inputs": [{**X, "shape": [1 << 62, 1 << 62], "contents": {"fp32_contents": RAW}}]},
        {"inputs": [{**X, "datatype": "INT8", "contents": {"int_contents": [1, 128]}}]},
        {"inputs": [{**X, "datatype": "BYTES", "contents": {"bytes_contents": [b"a"]}}]},
        {
            "inputs": [{**X, "parameters": [{"key": "shared_memory_region", "value": {"string_param": "r"}}]}],
            "raw_input_contents": [RAW],
        },
    ],
)
def test_what_does_not_fit_is_refused(request_: Values) -> None:
    with pytest.raises(InvalidInputError):
        read(request_)


def test_the_answer_goes_the_way_the_request_came() -> None:
    arrays = {"a": np.asarray([[1.5, 2]], np.float32), "b": np.asarray([-1, 2], np.int64)}
    raw = infer_response({"id": "7", "raw_input_contents": [RAW]}, "m", "1", arrays)
    assert decode(RESPONSE, encode(RESPONSE, raw)) == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 2]},
            {"name": "b", "datatype": "INT64", "shape": [2]},
        ],
        "raw_output_contents": [struct.pack("<2f", 1.5, 2), struct.pack("<2q", -1, 2)],
    }
    typed = decode(RESPONSE, encode(RESPONSE, infer_response({}, "m", "1", arrays)))
    assert [output["contents"] for output in typed["outputs"]] == [
        {"fp32_contents": struct.pack("<2f", 1.5, 2)},
        {"int64_contents": [-1, 2]},
    ]
    one = infer_response({"outputs": [{"name": "b"}]}, "m", "1", arrays)
    assert [output["name"] for output in one["outputs"]] == ["b"]
    half = infer_response({}, "m", "1", {"h": np.zeros(1, np.float16)})
    assert half["raw_output_contents"] == [b"\0\0"]


@pytest.mark.parametrize(
    "output", [{"name": "z"}, {}, {"name": "a", "parameters": [{"key": "classification", "value": {"int64_param": 1}}]}]
)
def test_outputs_that_are_not_there(output: Values) -> None:
    with pytest.raises(InvalidInputError):
        infer_response({"outputs": [output]}, "m", "1", {"a": np.zeros(1, np.float32)})
