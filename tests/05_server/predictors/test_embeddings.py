"""/v1/embeddings and /v1/rerank."""

import base64
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest

from aie_server import ServerConfig


def expected(weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    states = weights["word.weight"][ids] + weights["place.weight"][: len(ids)]
    vector = states.mean(axis=0)
    return np.asarray(vector / np.linalg.norm(vector))


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ("a b", [[1, 2]]),
        (["a b", "c"], [[1, 2], [3]]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("a b c d e f g a b c", [[1, 2, 3, 4, 5, 6, 7, 1]]),  # cut to the eight tokens that the model may have
    ],
)
def test_every_form_of_input(serve: Any, harness: Any, weights: Any, value: object, rows: list[list[int]]) -> None:
    serve("encoder")
    answer = harness.post("/v1/embeddings", {"input": value, "model": "encoder"})
    assert answer.status == 200, answer.body
    data = answer.json["data"]
    assert [entry["index"] for entry in data] == list(range(len(rows)))
    for entry, ids in zip(data, rows, strict=True):
        np.testing.assert_allclose(entry["embedding"], expected(weights("encoder"), ids), atol=1e-6)
    total = sum(map(len, rows))
    cut = int(isinstance(value, str) and len(value) > 10)
    assert answer.json["usage"] == {"prompt_tokens": total, "total_tokens": total, "truncated_inputs": cut}


def test_base64_dimensions_and_the_first_model(serve: Any, harness: Any) -> None:
    serve("rows", "encoder")
    whole = harness.post("/v1/embeddings", {"input": "a b"}).json
    assert whole["model"] == "encoder"
    coded = harness.post("/v1/embeddings", {"input": "a b", "encoding_format": "base64"}).json["data"][0]["embedding"]
    vector = np.frombuffer(base64.b64decode(coded), "<f4")
    np.testing.assert_array_equal(vector, np.asarray(whole["data"][0]["embedding"], np.float32))
    short = harness.post("/v1/embeddings", {"input": "a b", "dimensions": 3}).json["data"][0]["embedding"]
    np.testing.assert_allclose(short, vector[:3] / np.linalg.norm(vector[:3]), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "string"),
        ({"input": []}, "input", "1 to 4"),
        ({"input": ["a"] * 10_000}, "input", "1 to 4 entries, not 10000"),
        ({"input": ""}, "input[0]", "1 to 50 characters"),
        ({"input": "a" * 51}, "input[0]", "1 to 50 characters, not 51"),
        ({"input": ["a", 1]}, "input[1]", "string"),
        ({"input": [[]]}, "input", "tokens"),
        ({"input": [1, "a"]}, "input", "token ids only"),
        ({"input": [99]}, "token_ids", "0…7"),
        ({"input": [-1]}, "input", "token ids only"),
        ({"input": [1] * 9}, "input", "reads 1 to 8"),
        ({"input": [1] * 51}, "input", "at most 50"),
        ({"input": {"a": 1}}, "input", "string"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": "a", "dimensions": 7}, "dimensions", "6"),
        ({"input": "a", "dimensions": 0}, "dimensions", "1"),
        ({"input": "a", "model": "rows"}, "model", "gives no embeddings"),
    ],
)
def test_bad_requests(serve: Any, harness: Any, body: dict[str, object], param: str, words: str) -> None:
    serve("encoder", "rows", config=ServerConfig(max_inputs=4, max_input_chars=50))
    answer = harness.post("/v1/embeddings", body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert re.search(words, answer.error["message"]), answer.error


def test_a_text_of_ten_megabytes_is_refused_unread(serve: Any, harness: Any) -> None:
    serve("encoder")
    client = harness.connect()
    client.send(b"POST /v1/embeddings HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % (10 << 20))
    answer = client.answer()
    assert answer.status == 413 and "8388608" in answer.error["message"]


def test_models_that_are_not_there(serve: Any, harness: Any) -> None:
    serve("rows")
    answer = harness.post("/v1/embeddings", {"input": "a"})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    answer = harness.post("/v1/embeddings", {"input": "a", "model": "gpt"})
    assert answer.status == 404 and "rows" in answer.error["message"]


def test_the_openai_client(serve: Any) -> None:
    server = serve("encoder", api_keys=["key"])
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0, timeout=10) as client:
        made = client.embeddings.create(model="encoder", input=["a b", "c"])
        plain = client.embeddings.create(model="encoder", input=["a b", "c"], encoding_format="float")
        assert [len(entry.embedding) for entry in made.data] == [6, 6]
        np.testing.assert_allclose(made.data[1].embedding, plain.data[1].embedding, rtol=1e-6)
        assert made.usage.prompt_tokens == 3
        assert len(client.embeddings.create(model="encoder", input="a", dimensions=2).data[0].embedding) == 2
        assert [one.id for one in client.models.list()] == ["encoder"]
        assert client.models.retrieve("encoder").model_dump()["max_model_len"] == 8
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="encoder", input=[])
        assert caught.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="gpt", input="a")


def test_sixteen_at_once_are_as_each_alone(serve: Any, harness: Any) -> None:
    serve("encoder")
    texts = [" ".join("abcdefg"[: 1 + index % 7]) for index in range(16)]

    def ask(text: str) -> str:
        body = {"input": text, "encoding_format": "base64"}
        return str(harness.post("/v1/embeddings", body).json["data"][0]["embedding"])

    alone = [ask(text) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, texts))
    assert together == alone
    as_list = harness.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"}).json["data"]
    assert [entry["embedding"] for entry in as_list] == alone


# Rerank


def test_rerank_by_cosine(serve: Any, harness: Any, weights: Any) -> None:
    serve("encoder")
    body = {"query": "a", "documents": ["b c", "a", {"text": "d"}], "return_documents": True}
    answer = harness.post("/v1/rerank", body).json
    results = answer["results"]
    assert answer["method"] == "cosine" and answer["usage"]["total_tokens"] == 5
    assert results[0]["index"] == 1 and results[0]["relevance_score"] == pytest.approx(1, abs=1e-6)
    assert results[0]["document"] == {"text": "a"}
    of = weights("encoder")
    scores = {index: float(expected(of, [1]) @ expected(of, ids)) for index, ids in ((0, [2, 3]), (2, [4]))}
    for result in results[1:]:
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-6)
    best = harness.post("/v1/rerank", {**body, "top_n": 1, "return_documents": False}).json["results"]
    assert len(best) == 1 and "document" not in best[0]


def test_rerank_by_a_cross_encoder(serve: Any, harness: Any, weights: Any) -> None:
    serve("cross")
    answer = harness.post("/v1/rerank", {"query": "a", "documents": ["b", "c d"], "model": "cross"}).json
    assert answer["method"] == "cross-encoder"
    of = weights("cross")
    for result in answer["results"]:
        ids = [[1, 2], [1, 3, 4]][result["index"]]
        logit = (of["word.weight"][ids] + of["place.weight"][: len(ids)]).mean(axis=0) @ of["fc.weight"][0]
        assert result["relevance_score"] == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("query", "documents", "status"), [("a" * 8, ["b", "c"], 200), ("a" * 9, ["b", "c"], 400)])
def test_a_query_is_read_with_each_document(
    serve: Any, harness: Any, query: str, documents: list[str], status: int
) -> None:
    serve("cross", "encoder", config=ServerConfig(max_pair_chars=18))
    body = {"query": query, "documents": documents}
    answer = harness.post("/v1/rerank", {**body, "model": "cross"})
    assert answer.status == status, answer.body
    assert status == 200 or (
        "20 characters; at most 18" in answer.error["message"] and answer.error["param"] == "query"
    )
    assert harness.post("/v1/rerank", {**body, "model": "encoder"}).status == 200  # which reads it once


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["a", {"txt": "b"}]}, "documents[1]"),
        ({"query": "a", "documents": "a"}, "documents"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["a"], "model": "rows"}, "model"),
    ],
)
def test_bad_rerank_requests(serve: Callable[..., Any], harness: Any, body: object, param: str) -> None:
    serve("encoder", "rows")
    answer = harness.post("/v1/rerank", body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
