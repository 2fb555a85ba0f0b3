"""`aie serve` with models that answer at once: alone, beside a language model, in worker processes."""

import json
import logging
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie.predictors import describe, predictor_config
from aie.service import Service, build_service
from aie.settings import ServeSettings
from aie_engine import AieError, EnvironmentLacksError, InvalidInputError, PredictorConfig
from aie_loader import resolve
from aie_reliability import OverloadedError
from aie_server import AdmitRequest


def write_rows(folder: Path) -> Path:
    folder.mkdir()
    np.savez(folder / "weights.npz", **{"fc.weight": np.eye(3, 4, dtype=np.float32)})
    nodes = [{"name": "out", "op": "linear", "inputs": ["x", "fc.weight"]}]
    document = {"aie_graph": 1, "inputs": {"x": ["B", 4]}, "nodes": nodes, "outputs": ["out"]}
    (folder / "graph.json").write_text(json.dumps(document))
    (folder / "config.json").write_text('{"id2label": {"0": "ant", "1": "bee", "2": "wasp"}}')
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows")


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def start(*models: object, **settings: Any) -> Service:
        values = {"port": 0, "workers": 0, "kernels": "numpy", "threads": 1, **settings}
        service = build_service(ServeSettings(models=tuple(map(str, models)), **values), report=logging.debug)
        services.append(service)
        service.server.start()
        return service

    yield start
    for service in services:
        service.close()


def ask(service: Service, path: str, body: object) -> Any:
    request = urllib.request.Request(service.server.url + path, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_a_folder_with_a_graph(serve: Callable[..., Service], rows: Path) -> None:
    service = serve(rows)
    labels = ask(service, "/predict/rows", {"input": [0, 9, 0, 0], "top_k": 1})["predictions"][0]["labels"]
    assert labels[0]["label"] == "bee"
    assert ask(service, "/v2/repository/index", {}) == [
        {"name": "rows", "version": "1", "state": "READY", "reason": ""}
    ]
    assert "row at a time" in describe(service.predictors[0])
    with urllib.request.urlopen(service.server.url + "/health", timeout=30) as answer:
        assert answer.status == 200


def test_worker_processes(serve: Callable[..., Service], rows: Path) -> None:
    service = serve(rows, workers=2)
    assert service.predictors[0].predictor.info.num_workers == 2
    inputs = [[i, 9, 0, 0] for i in range(9)]
    assert len(ask(service, "/predict/rows", {"input": inputs})["predictions"]) == 9
    assert "2 workers" in describe(service.predictors[0])


def test_beside_a_language_model(serve: Callable[..., Service], rows: Path, tiny_gguf: Path) -> None:
    service = serve(tiny_gguf, rows)
    assert ask(service, "/v1/completions", {"prompt": "a", "max_tokens": 1})["choices"]
    assert ask(service, "/predict/rows", {"input": [1, 0, 0, 0]})["predictions"]
    with urllib.request.urlopen(service.server.url + "/v1/models", timeout=30) as answer:
        assert len(json.load(answer)["data"]) == 2


def test_what_starts_is_closed_when_a_later_part_fails(tmp_path: Path, rows: Path) -> None:
    broken = write_rows(tmp_path / "broken")
    (broken / "processing.toml").write_text("texts = 3")
    with pytest.raises(InvalidInputError, match=r"processing\.toml.*texts"):
        build_service(ServeSettings(models=(str(rows), str(broken)), workers=0, kernels="numpy", port=0))


def test_a_repository_has_no_predictors(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "rows").mkdir()
    write_rows(tmp_path / "models" / "rows" / "1")
    with pytest.raises(InvalidInputError, match="Name it on the command line"):
        build_service(ServeSettings(repository=str(tmp_path / "models"), workers=0, port=0), report=logging.debug)


@pytest.mark.parametrize(("policy", "room"), [("reject", 5 + 2), ("block", None), ("drop-oldest", None)])
def test_the_door_leaves_a_full_queue_to_the_queue(
    serve: Callable[..., Service], rows: Path, policy: str, room: int | None
) -> None:
    """What is refused at the door can neither wait for room nor take the place of the oldest."""
    origins = {"max_queue": "flag", "max_batch_size": "flag"}
    gate = serve(rows, max_queue=5, max_batch_size=2, queue_policy=policy, origins=origins).gate
    asked = AdmitRequest("a", "/predict/rows", is_prediction=True)
    with ExitStack() as inside:
        for _ in range(room or 20):
            inside.enter_context(gate.admit(asked))
        with nullcontext() if room is None else pytest.raises(OverloadedError), gate.admit(asked):
            pass


def test_settings_reach_the_predictor(rows: Path) -> None:
    plain = predictor_config(ServeSettings(threads=1), rows, "rows")
    defaults = PredictorConfig(rows)
    assert (plain.max_batch_size, plain.max_queue) == (defaults.max_batch_size, defaults.max_queue)
    told = ServeSettings(max_batch_size=7, max_wait_ms=1.5, origins={"max_batch_size": "flag", "max_wait_ms": "flag"})
    config = predictor_config(told, rows, "rows")
    assert (config.max_batch_size, config.max_wait_ms, config.model_name) == (7, 1.5, "rows")
    (rows / "processing.toml").write_text('[batching]\nmax_batch_size = 5\nmax_wait_ms = 9\npolicy = "passthrough"')
    own, mixed = (predictor_config(settings, rows, "rows") for settings in (ServeSettings(threads=1), told))
    assert (own.max_batch_size, own.max_wait_ms, own.policy) == (5, 9, "passthrough")
    assert (mixed.max_batch_size, mixed.max_wait_ms, mixed.policy) == (7, 1.5, "passthrough")
    assert predictor_config(ServeSettings(threads=1, batcher="static"), rows, "rows").policy == "static"
    (rows / "processing.toml").write_text(
        '[batching]\nbuckets = "fixed"\nbucket_edges = [8, 64]\nnum_buckets = 3\nbatch_timeout_s = 7'
    )
    own = predictor_config(ServeSettings(threads=1), rows, "rows")
    assert (own.buckets, own.bucket_edges, own.num_buckets, own.batch_timeout_s) == ("fixed", (8, 64), 3, 7)
    (rows / "processing.toml").write_text(
        '[batching]\nqueue_policy = "drop-oldest"\nwaiting = "hybrid"\nblock_timeout_s = 2'
    )
    own, mixed = (
        predictor_config(settings, rows, "rows")
        for settings in (ServeSettings(threads=1), ServeSettings(threads=1, queue_policy="block", waiting="spin"))
    )
    assert (plain.queue_policy, plain.waiting) == ("reject", "block")
    assert (own.queue_policy, own.waiting, own.block_timeout_s) == ("drop-oldest", "hybrid", 2)
    assert (mixed.queue_policy, mixed.waiting, mixed.block_timeout_s) == ("block", "spin", 2)
    for wrong in ({"queue_policy": "push"}, {"waiting": "sleep"}, {"batcher": "magic"}):
        with pytest.raises(InvalidInputError, match="must be"):
            predictor_config(ServeSettings(**wrong), rows, "rows")  # type: ignore[arg-type]
    for wrong in ({"device": "cuda"}, {"device": "tpu"}, {"quantize": "int8"}, {"lenient": ("x",)}, {"workers": -1}):
        with pytest.raises(AieError, match=r"rows|device|workers"):
            predictor_config(ServeSettings(**wrong), rows, "rows")  # type: ignore[arg-type]


@pytest.mark.real_model
def test_minilm(serve: Callable[..., Service]) -> None:
    try:
        resolve("minilm-l6")
    except AieError as error:
        pytest.skip(str(error))
    service = serve("minilm-l6", kernels="auto")
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates went up."]
    answer = ask(service, "/v1/embeddings", {"model": "minilm-l6", "input": texts})
    vectors = np.asarray([entry["embedding"] for entry in answer["data"]])
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    ranked = ask(service, "/v1/rerank", {"query": texts[0], "documents": texts[1:]})
    assert ranked["method"] == "cosine" and ranked["results"][0]["index"] == 0
    with urllib.request.urlopen(service.server.url + "/v2/models/minilm-l6", timeout=30) as metadata:
        assert json.load(metadata)["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]


def test_grpc_beside_http(serve: Callable[..., Service], rows: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install -e '.[grpc]'")
    service = serve(rows, grpc_port=0, api_key="secret")
    with grpc.insecure_channel(f"127.0.0.1:{service.server.grpc_port}") as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
        raw = ask(b"\x0a\x04rows", timeout=30, metadata=(("authorization", "Bearer secret"),))
    assert raw == b"\x08\x01"  # ready


def test_grpc_without_its_package_is_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Service], rows: Path
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(EnvironmentLacksError, match=r"aie\[grpc\]") as caught:
        serve(rows, grpc_port=0)
    assert caught.value.exit_code == 3
