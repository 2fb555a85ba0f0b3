"""Triton's own client, unchanged, over both of the protocol's transports."""

from collections.abc import Iterator
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from aie_server import Server

REASON = "needs Triton's client: pip install 'tritonclient[http,grpc]'"
ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 0]], np.float32)
TEXTS = np.array([b"a b", b"c"], object)
TIMEOUT_S = 10.0


class Triton:
    """The client of one transport, and the module that its tensors and errors come from."""

    def __init__(self, kind: str, server: Server) -> None:
        pytest.importorskip(f"tritonclient.{kind}", reason=REASON, exc_type=ImportError)
        from tritonclient import grpc, http, utils

        self.kind = kind
        self.module: ModuleType = grpc if kind == "grpc" else http
        self.error = utils.InferenceServerException
        address = f"127.0.0.1:{server.grpc_port if kind == 'grpc' else server.address[1]}"
        self.client: Any = self.module.InferenceServerClient(address)

    def input(self, name: str, array: np.ndarray, datatype: str) -> Any:
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def infer(self, model: str, *inputs: Any, **options: Any) -> Any:
        return self.client.infer(model, list(inputs), **options)


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, serve: Any) -> Iterator[Triton]:
    made = Triton(request.param, serve("rows", "encoder", "two", grpc_port=0))
    yield made
    made.client.close()


def test_what_it_asks_before_it_infers(triton: Triton) -> None:
    client = triton.client
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("rows") and client.is_model_ready("rows", "1")
    options = {"as_json": True} if triton.kind == "grpc" else {}
    assert client.get_server_metadata(**options)["name"] == "aie"
    (tensor,) = client.get_model_metadata("rows", **options)["inputs"]
    assert (tensor["name"], tensor["datatype"], [int(size) for size in tensor["shape"]]) == ("x", "FP32", [-1, 4])


def test_rows_as_bytes(triton: Triton, weights: Any) -> None:
    found = triton.infer("rows", triton.input("x", ROWS, "FP32"), request_id="7").as_numpy("logits")
    assert (found.dtype, found.shape) == (np.float32, (2, 3))
    np.testing.assert_allclose(found, ROWS @ weights("rows")["fc.weight"].T, rtol=1e-5, atol=1e-6)


def test_several_inputs_and_a_wished_output(triton: Triton) -> None:
    output = triton.module.InferRequestedOutput("out")
    x, y = triton.input("x", ROWS, "FP32"), triton.input("y", ROWS + 1, "FP32")
    np.testing.assert_array_equal(triton.infer("two", x, y, outputs=[output]).as_numpy("out"), 2 * ROWS + 1)


def test_texts_and_token_ids_are_the_same_model(triton: Triton) -> None:
    by_text = triton.infer("encoder", triton.input("text", TEXTS, "BYTES")).as_numpy("states")
    ids, mask = np.array([[1, 2], [3, 0]], np.int64), np.array([[1, 1], [1, 0]], np.int64)
    inputs = [triton.input("token_ids", ids, "INT64"), triton.input("attention_mask", mask, "INT64")]
    by_ids = triton.infer("encoder", *inputs).as_numpy("states")
    assert by_text.shape[:2] == (2, 2)
    np.testing.assert_array_equal(by_text, by_ids)


def test_numbers_in_the_message_itself(serve: Any, weights: Any) -> None:
    """Without the binary extension, which only HTTP can do without."""
    triton = Triton("http", serve("rows"))
    tensor = triton.module.InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(ROWS, binary_data=False)
    output = triton.module.InferRequestedOutput("logits", binary_data=False)
    found = triton.infer("rows", tensor, outputs=[output]).as_numpy("logits")
    np.testing.assert_allclose(found, ROWS @ weights("rows")["fc.weight"].T, rtol=1e-5, atol=1e-6)
    triton.client.close()


def test_several_at_once(triton: Triton) -> None:
    x = triton.input("x", ROWS, "FP32")
    if triton.kind == "http":
        pending = [triton.client.async_infer("rows", [x]) for _ in range(4)]
        found = [one.get_result() for one in pending]
    else:
        answers: SimpleQueue[Any] = SimpleQueue()
        for _ in range(4):
            triton.client.async_infer("rows", [x], lambda result, error: answers.put(error or result))
        found = [answers.get(timeout=TIMEOUT_S) for _ in range(4)]
    first, *others = [one.as_numpy("logits") for one in found]
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("asked", "name", "array", "datatype", "says"),
    [
        ("none", "x", ROWS, "FP32", "none"),
        ("rows", "z", ROWS, "FP32", "x"),
        ("rows", "x", ROWS[:, :3], "FP32", "shape"),
        ("rows", "x", ROWS.astype(np.int32), "INT32", "FP32"),
        ("rows", "x", np.full((1, 4), np.nan, np.float32), "FP32", "NaN"),
    ],
)
def test_its_error_says_what_is_wrong(
    triton: Triton, asked: str, name: str, array: np.ndarray, datatype: str, says: str
) -> None:
    with pytest.raises(triton.error) as caught:
        triton.infer(asked, triton.input(name, array, datatype))
    assert says in caught.value.message()
