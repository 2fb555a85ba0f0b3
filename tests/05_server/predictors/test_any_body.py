"""Whatever the fields hold, a request to a predictor is answered or refused, and never the server's fault."""

import json
import random
from typing import Any

import pytest

FIELDS = {
    "/v1/embeddings": ("input", "encoding_format", "dimensions", "model"),
    "/v1/rerank": ("query", "documents", "top_n", "return_documents", "model"),
    "/classify": ("input", "top_k", "model"),
    "/predict/encoder": ("input", "inputs", "top_k"),
    "/predict/rows": ("input", "inputs", "top_k"),
    "/predict/two": ("input", "inputs"),
    "/predict/image": ("input", "inputs"),
    "/v2/models/rows/infer": ("inputs", "outputs", "parameters", "id"),
    "/v2/models/encoder/infer": ("inputs", "outputs", "parameters"),
}
GOOD: dict[str, object] = {
    "input": "a b", "documents": ["a", "b"], "query": "a", "encoding_format": "base64", "dimensions": 2, "top_n": 1,
    "top_k": 1, "model": "default", "return_documents": True, "id": "1",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}],
    "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
}  # fmt: skip
LEAVES: list[object] = [
    None, True, False, 0, 1, -1, 4, 1 << 40, -(1 << 70), 1.5, 1e300, "", "a", "a b", "x", "text", "token_ids", "FP32",
    "BYTES", "INT64", "BOOL", "\x00", "é" * 30, "iVBORw0KGgo=", "logits", [], {},
]  # fmt: skip
KEYS = [
    "x",
    "y",
    "text",
    "name",
    "datatype",
    "shape",
    "data",
    "parameters",
    "binary_data_size",
    "binary_data",
    "pixels",
]


def anything(source: random.Random, depth: int = 3) -> object:
    kind = source.random()
    if depth == 0 or kind < 0.4:
        return source.choice(LEAVES)
    if kind < 0.7:
        return [anything(source, depth - 1) for _ in range(source.randrange(5))]
    return {source.choice(KEYS): anything(source, depth - 1) for _ in range(source.randrange(5))}


def spoilt(value: object, source: random.Random) -> object:
    """`value` with one thing in it changed."""
    if isinstance(value, dict) and value and source.random() < 0.9:
        key = source.choice(list(value))
        return {**value, key: spoilt(value[key], source)}
    if isinstance(value, list) and value and source.random() < 0.9:
        index = source.randrange(len(value))
        return [*value[:index], spoilt(value[index], source), *value[index + 1 :]]
    return anything(source, 2)


@pytest.mark.parametrize("path", FIELDS)
def test_any_body(serve: Any, harness: Any, path: str) -> None:
    serve("encoder", "classifier", "rows", "two", "image")
    source = random.Random(path)
    client, statuses = harness.connect(), []
    for _ in range(150):
        body = {field: GOOD.get(field, anything(source)) for field in FIELDS[path] if source.random() < 0.8}
        for field in FIELDS[path]:
            if source.random() < 0.4:
                body[field] = spoilt(body.get(field), source) if source.random() < 0.6 else anything(source)
        answer = client.post(path, json.dumps(body).encode()).answer()
        assert answer.status in (200, 400, 404), (body, answer.body)
        statuses.append(answer.status)
    assert 400 in statuses
    assert harness.get("/health").status == 200


def test_any_bytes_behind_the_json(serve: Any, harness: Any) -> None:
    serve("rows", "encoder")
    source, client = random.Random(1), harness.connect()
    for _ in range(200):
        name, datatype, model = source.choice([("x", "FP32", "rows"), ("text", "BYTES", "encoder")])
        data = source.randbytes(source.choice([0, 4, 16, 32, 33]))
        parameters = {"binary_data_size": source.choice([len(data), 16, 0])}
        head = json.dumps(
            {"inputs": [{"name": name, "datatype": datatype, "shape": [source.randrange(4), 4][: source.randrange(3)],
                         "parameters": parameters}]}
        ).encode()  # fmt: skip
        size = source.choice([len(head), len(head) - 1, len(head) + 1, 0])
        headers = {"Inference-Header-Content-Length": str(size)}
        answer = client.post(f"/v2/models/{model}/infer", head + data, headers).answer()
        assert answer.status in (200, 400), (head, data, answer.body)
