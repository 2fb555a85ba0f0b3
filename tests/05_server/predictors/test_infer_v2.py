"""The open inference protocol over HTTP, by hand-made requests."""

import json
import struct
from typing import Any

import numpy as np
import pytest

from aie_server import HttpLimits, ServerConfig

ROWS = [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]]
RAW = struct.pack("<8f", *ROWS[0], *ROWS[1])
X = {"name": "x", "datatype": "FP32", "shape": [2, 4]}


def binary(harness: Any, path: str, body: object, data: bytes, size: object = None) -> Any:
    head = json.dumps(body).encode()
    headers = {"Inference-Header-Content-Length": str(len(head) if size is None else size)}
    return harness.connect().post(path, head + data, headers).answer()


def test_metadata_and_health(serve: Any, harness: Any) -> None:
    serve("rows", "encoder", api_keys=["key"])
    assert harness.get("/v2/health/live").json == {"live": True}  # without a key, as probes ask
    assert harness.get("/v2/health/ready").json == {"ready": True}
    key = {"Authorization": "Bearer key"}
    assert harness.get("/v2/models/rows").status == 401
    server = harness.get("/v2", **key).json
    assert server["name"] == "aie" and "binary_tensor_data" in server["extensions"]
    for path in ("/v2/models/rows", "/v2/models/rows/versions/1"):
        assert harness.get(path, **key).json == {
            "name": "rows",
            "versions": ["1"],
            "platform": "aie",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
        }
    assert harness.get("/v2/models/encoder", **key).json["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [-1]}
    ]
    assert harness.get("/v2/models/rows/versions/1/ready", **key).json == {"name": "rows", "ready": True}
    for path in ("/v2/models/none", "/v2/models/rows/versions/2", "/v2/models/none/ready"):
        answer = harness.get(path, **key)
        assert answer.status == 404 and set(answer.json) == {"error", "code"}


@pytest.mark.parametrize("data", [ROWS, [*ROWS[0], *ROWS[1]]])
def test_json(serve: Any, harness: Any, weights: Any, data: object) -> None:
    serve("rows")
    answer = harness.post("/v2/models/rows/infer", {"id": "7", "inputs": [{**X, "data": data}]})
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    assert (answer.json["id"], answer.json["model_name"], answer.json["model_version"]) == ("7", "rows", "1")
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [2, 3])
    want = np.asarray(ROWS, np.float32) @ weights("rows")["fc.weight"].T
    np.testing.assert_allclose(output["data"], want.ravel(), rtol=1e-5, atol=1e-6)
    assert "Server-Timing" in answer.headers


def test_binary_in_and_out(serve: Any, harness: Any, weights: Any) -> None:
    serve("rows")
    asked = {**X, "parameters": {"binary_data_size": len(RAW)}}
    body = {"inputs": [asked], "parameters": {"binary_data_output": True}}
    answer = binary(harness, "/v2/models/rows/versions/1/infer", body, RAW)
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/octet-stream"
    size = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": 24} and "data" not in output
    got = np.frombuffer(answer.body[size:], "<f4").reshape(2, 3)
    plain = harness.post("/v2/models/rows/infer", {"inputs": [{**X, "data": ROWS}]}).json["outputs"][0]["data"]
    np.testing.assert_array_equal(got.ravel(), np.asarray(plain, np.float32))
    mixed = {"inputs": [asked], "outputs": [{"name": "logits", "parameters": {"binary_data": False}}]}
    assert binary(harness, "/v2/models/rows/infer", mixed, RAW).json["outputs"][0]["data"] == plain


def test_a_compressed_body_is_refused_by_name(serve: Any, harness: Any) -> None:
    serve("rows")
    answer = harness.connect().post("/v2/models/rows/infer", b"\x1f\x8b", {"Content-Encoding": "gzip"}).answer()
    assert answer.status == 400 and "gzip" in answer.json["error"]


def test_several_inputs_in_their_order(serve: Any, harness: Any) -> None:
    serve("two")
    x, y = (
        {"name": name, "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}} for name in "xy"
    )
    data = struct.pack("<8f", *range(8))
    answer = binary(harness, "/v2/models/two/infer", {"inputs": [y, x]}, data)
    assert answer.json["outputs"][0]["data"] == [4, 6, 8, 10]


def test_texts(serve: Any, harness: Any) -> None:
    serve("encoder")
    text = {"name": "text", "datatype": "BYTES", "shape": [2]}
    answer = harness.post("/v2/models/encoder/infer", {"inputs": [{**text, "data": ["a b", "c"]}]})
    (output,) = answer.json["outputs"]
    assert output["shape"] == [2, 2, 6] and output["data"][18:] == [0] * 6  # the shorter one, filled up
    raw = b"".join(struct.pack("<I", len(t)) + t for t in (b"a b", b"c"))
    same = binary(
        harness,
        "/v2/models/encoder/infer",
        {"inputs": [{**text, "parameters": {"binary_data_size": len(raw)}}]},
        raw,
    )
    assert same.json["outputs"] == answer.json["outputs"]
    ids = {"name": "token_ids", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 0]}
    mask = {"name": "attention_mask", "datatype": "INT64", "shape": [2, 2], "data": [1, 1, 1, 0]}
    assert harness.post("/v2/models/encoder/infer", {"inputs": [ids, mask]}).json["outputs"] == answer.json["outputs"]


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_text_that_is_too_long_is_refused_as_everywhere(serve: Any, harness: Any, is_binary: bool) -> None:
    serve("encoder", config=ServerConfig(max_input_chars=3))
    text = {"name": "text", "datatype": "BYTES", "shape": [2]}
    path = "/v2/models/encoder/infer"
    for long, status in (("äöü", 200), ("äöüa", 400)):  # characters count, not bytes
        raw = b"".join(struct.pack("<I", len(t)) + t for t in (b"a b", long.encode()))
        if is_binary:
            answer = binary(harness, path, {"inputs": [{**text, "parameters": {"binary_data_size": len(raw)}}]}, raw)
        else:
            answer = harness.post(path, {"inputs": [{**text, "data": ["a b", long]}]})
        assert answer.status == status, answer.body
    assert answer.json["error"].startswith("text[1] must have at most 3 characters, not 4")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": []},
        {"inputs": [5]},
        {"inputs": [{**X, "data": ROWS}] * 65},
        {"inputs": [{**X, "data": ROWS}] * 2},
        {"inputs": [{**X, "name": "", "data": ROWS}]},
        {"inputs": [{**X, "name": "z", "data": ROWS}]},
        {"inputs": [{**X, "datatype": "FP64", "data": ROWS}]},
        {"inputs": [{**X, "datatype": "FP8", "data": ROWS}]},
        {"inputs": [{**X, "shape": [4, 2], "data": [0] * 8}]},
        {"inputs": [{**X, "shape": [2, 4, 1], "data": [0] * 8}]},
        {"inputs": [{**X, "shape": [0, 4], "data": []}]},
        {"inputs": [{**X, "shape": [1, 0, 1 << 40, 1 << 40], "data": []}]},
        {"inputs": [{**X, "shape": [1 << 40, 0], "data": []}]},
        {"inputs": [{**X, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 32}}]},
        {"inputs": [{**X, "shape": [2, -4], "data": ROWS}]},
        {"inputs": [{**X, "shape": [], "data": [1]}]},
        {"inputs": [{**X, "shape": [2, True], "data": [1, 2]}]},
        {"inputs": [{**X, "shape": [3000, 4], "data": [0] * 12000}]},
        {"inputs": [{**X, "data": [1] * 7}]},
        {"inputs": [{**X, "data": ["a"] * 8}]},
        {"inputs": [{**X}]},
        {"inputs": [{**X, "data": ROWS}], "outputs": [{"name": "other"}]},
        {"inputs": [{**X, "data": ROWS}], "outputs": [{"name": "logits", "parameters": {"classification": 1}}]},
    ],
)
def test_bad_requests(serve: Any, harness: Any, body: object) -> None:
    serve("rows")
    answer = harness.post("/v2/models/rows/infer", body)
    assert answer.status == 400 and set(answer.json) == {"error", "code"}, answer.body


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("shape", [[5], [1, 5], [5, 1]])
def test_too_many_texts_are_refused_unread(serve: Any, harness: Any, shape: list[int], is_binary: bool) -> None:
    """Each is an object of its own: a body of empty ones would keep all other requests waiting for seconds."""
    serve("encoder", config=ServerConfig(max_inputs=4))
    text, path = {"name": "text", "datatype": "BYTES", "shape": shape}, "/v2/models/encoder/infer"
    if is_binary:
        raw = b"not read"
        answer = binary(harness, path, {"inputs": [{**text, "parameters": {"binary_data_size": len(raw)}}]}, raw)
    else:
        answer = harness.post(path, {"inputs": [{**text, "data": [None]}]})
    assert answer.status == 400 and "1 to 4 entries, not 5" in answer.json["error"], answer.body


def test_an_empty_list_of_outputs_means_all(serve: Any, harness: Any) -> None:
    serve("rows")
    answer = harness.post("/v2/models/rows/infer", {"inputs": [{**X, "data": ROWS}], "outputs": []})
    assert [output["name"] for output in answer.json["outputs"]] == ["logits"]


def test_every_error_below_v2_has_the_form_of_v2(serve: Any, harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that no handler has raised, such as for a route, a method, a body, or a fault of ours."""
    serve("rows", config=ServerConfig(http=HttpLimits(max_body_bytes=4096)))
    monkeypatch.setattr("aie_server.api.infer_v2.parse_infer", lambda _: 1 / 0)
    path = "/v2/models/rows/infer"
    for answer, status, code in (
        (harness.post("/v2/nothing", {}), 404, "route_not_found"),
        (harness.post("/v2", {}), 405, "method_not_allowed"),
        (harness.post(path, {"a": "a" * 5000}), 413, "body_too_large"),
        (harness.post(path, {}), 500, "internal_error"),
    ):
        assert (answer.status, answer.json["code"]) == (status, code) and isinstance(answer.json["error"], str)


@pytest.mark.parametrize(
    ("size", "data", "header"),
    [(32, RAW[:-1], None), (31, RAW, None), (33, RAW, None), (None, RAW, None), (32, RAW + b"x", None),
     (32, RAW, "9" * 12), (32, RAW, "-1"), (32, RAW, "x"), (32, RAW, 0),
     (32, struct.pack("<8f", *[float("nan")] * 8), None), (32, struct.pack("<8f", *[float("inf")] * 8), None)],
)  # fmt: skip
def test_bad_binary_data(serve: Any, harness: Any, size: int | None, data: bytes, header: object) -> None:
    serve("rows")
    parameters = {} if size is None else {"binary_data_size": size}
    body = {"inputs": [{**X, "parameters": parameters}]}
    answer = binary(harness, "/v2/models/rows/infer", body, data, header)
    assert answer.status == 400 and set(answer.json) == {"error", "code"}, answer.body
