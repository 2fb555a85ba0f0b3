"""/classify and /predict/{model}: texts, rows, images."""

import base64
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_server import ServerConfig

Image = pytest.importorskip("PIL.Image")


def png(size: int = 4, value: int = 128) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def test_classify(serve: Any, harness: Any, weights: Any) -> None:
    serve("classifier")
    answer = harness.post("/classify", {"input": ["a b", "c"]})
    assert answer.status == 200 and answer.json["usage"]["total_tokens"] == 3
    of = weights("classifier")
    logits = (of["word.weight"][[1, 2]] + of["place.weight"][:2]).mean(axis=0) @ of["fc.weight"].T
    scores, first = softmax(logits), answer.json["data"][0]
    assert first["num_classes"] == 3 and len(first["labels"]) == 3
    assert (first["label"], first["labels"][0]["index"]) == (["ant", "bee", "wasp"][scores.argmax()], scores.argmax())
    for label in first["labels"]:
        assert label["score"] == pytest.approx(scores[label["index"]], abs=1e-6)
    one = harness.post("/classify", {"input": "a b", "top_k": 1}).json["data"][0]
    assert one["labels"] == first["labels"][:1]


@pytest.mark.parametrize(
    ("body", "param"),
    [({"input": []}, "input"), ({"input": 5}, "input"), ({"input": "a", "top_k": 0}, "top_k"),
     ({"input": "a", "model": "rows"}, "model")],
)  # fmt: skip
def test_bad_classify_requests(serve: Any, harness: Any, body: object, param: str) -> None:
    serve("classifier", "rows")
    answer = harness.post("/classify", body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


def test_rows(serve: Any, harness: Any, weights: Any) -> None:
    serve("rows", "plain")
    scores = softmax(np.asarray([1, 2, 3, 4], np.float32) @ weights("rows")["fc.weight"].T)
    one = harness.post("/predict/rows", {"input": [1, 2, 3, 4], "top_k": 2}).json
    assert one["model"] == "rows" and len(one["predictions"]) == 1
    labels = one["predictions"][0]["labels"]
    assert [label["index"] for label in labels] == np.argsort(-scores)[:2].tolist()
    many = harness.post("/predict/plain", {"input": [[1, 2, 3, 4], [0, 0, 0, 0]]}).json["predictions"]
    assert many[1] == {"outputs": {"out": [0, 0, 0]}}
    assert harness.post("/predict/plain", {"inputs": {"x": [[0, 0, 0, 0]]}}).json["predictions"] == many[1:]


def test_several_inputs_and_texts(serve: Any, harness: Any) -> None:
    serve("two", "encoder", "classifier")
    body = {"inputs": {"x": [[1, 2, 3, 4]], "y": [1, 1, 1, 1]}}
    assert harness.post("/predict/two", body).json["predictions"] == [{"outputs": {"out": [2, 3, 4, 5]}}]
    answer = harness.post("/predict/two", {"input": [1, 2, 3, 4]})
    assert answer.status == 400 and "x, y" in answer.error["message"]
    assert len(harness.post("/predict/encoder", {"input": "a"}).json["predictions"][0]["embedding"]) == 6
    assert harness.post("/predict/classifier", {"input": ["a", "b"]}).json["predictions"][1]["labels"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": [1], "inputs": {"x": [1]}}, "input"),
        ({"input": []}, "x"),
        ({"input": [[]]}, "x"),
        ({"input": [1, 2, 3]}, "x"),
        ({"input": [1, 2, 3, None]}, "x"),
        ({"input": [1, 2, 3, "4"]}, "x"),
        ({"input": [1, 2, 3, 1e39]}, "x"),
        ({"input": [[0, 0, 0, 0]] * 5}, "input"),
        ({"inputs": {"y": [0, 0, 0, 0]}}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"input": "text"}, "x"),
    ],
)
def test_bad_rows(serve: Any, harness: Any, body: object, param: str) -> None:
    serve("rows", config=ServerConfig(max_inputs=4))
    answer = harness.post("/predict/rows", body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


def test_nan_is_no_json(serve: Any, harness: Any) -> None:
    serve("rows")
    assert harness.post("/predict/rows", b'{"input": [NaN, 0, 0, 0]}').status == 400


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "application/x-www-form-urlencoded"])
def test_an_image_as_the_body(serve: Any, harness: Any, weights: Any, kind: str) -> None:
    serve("image")
    answer = harness.connect().post("/predict/image?top_k=1", png(), {"Content-Type": kind}).answer()
    assert answer.status == 200, answer.body
    scores = softmax(np.full(48, 128 / 255, np.float32) @ weights("image")["fc.weight"].T)
    (label,) = answer.json["predictions"][0]["labels"]
    assert label["label"] == ["cat", "dog"][scores.argmax()] and label["score"] == pytest.approx(scores.max(), abs=1e-5)


def test_too_many_fields_beside_an_image(serve: Any, harness: Any) -> None:
    serve("image")
    answer = harness.connect().post("/predict/image?" + "a=1&" * 17, png(), {"Content-Type": "image/png"}).answer()
    assert answer.status == 400 and "16" in answer.json["error"]["message"]


def test_curl_with_an_image(serve: Any, harness: Any, tmp_path: Path) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("there is no curl here")
    server = serve("image")
    (tmp_path / "cat.png").write_bytes(png())
    command = [curl, "--silent", "--max-time", "20", f"{server.url}/predict/image", "--data-binary", "@cat.png"]
    answer = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert answer["predictions"][0]["labels"][0]["label"] in ("cat", "dog")


def test_images_as_base64(serve: Any, harness: Any) -> None:
    serve("image")
    text = base64.b64encode(png()).decode()
    answer = harness.post("/predict/image", {"input": [text, f"data:image/png;base64,{text}"]})
    first, second = answer.json["predictions"]
    assert first == second
    pixels = np.full((3, 4, 4), 128 / 255).tolist()
    assert harness.post("/predict/image", {"input": pixels}).json["predictions"][0]["labels"][0]["score"] == (
        pytest.approx(first["labels"][0]["score"], abs=1e-6)
    )


def test_bad_images(serve: Any, harness: Any) -> None:
    serve("image", "rows", config=ServerConfig(max_image_pixels=100, max_request_pixels=150))

    def upload(data: bytes, path: str = "/predict/image", kind: str = "image/png") -> Any:
        return harness.connect().post(path, data, {"Content-Type": kind}).answer()

    answer = upload(b"no image")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_image", "body")
    assert "100" in upload(png(11)).error["message"]
    assert upload(b"").status == 400
    assert upload(png(), "/predict/rows").status == 400
    assert "--data-binary" in upload(png(), kind="multipart/form-data; boundary=x").error["message"]
    text = base64.b64encode(png(9)).decode()
    assert harness.post("/predict/image", {"input": text}).status == 200
    assert "75" in harness.post("/predict/image", {"input": [text, text]}).error["message"]
    assert harness.post("/predict/image", {"input": "%%%"}).error["param"] == "input[0]"
    assert harness.post("/predict/nothing", {"input": "a"}).status == 404
