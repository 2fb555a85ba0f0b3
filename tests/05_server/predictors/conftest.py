"""Tiny predictors on disk, a predictor by hand, and servers of both."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from aie_engine import (
    ArrayInfo,
    BatchFacts,
    LocalPredictor,
    PredictFuture,
    Prediction,
    PredictorConfig,
    PredictorInfo,
    PredictorStats,
    PredictRequest,
    WorkerStats,
)
from aie_engine.errors import RequestCancelledError
from aie_engine.processing import load_pipeline
from aie_server import ServedPredictor, Server

WAIT_S = 5.0
WORDS = ["[UNK]", "a", "b", "c", "d", "e", "f", "g"]
WIDTH = 6
Node = dict[str, object]

_STATES: list[Node] = [
    {"name": "word", "op": "embedding", "inputs": ["token_ids", "word.weight"]},
    {"name": "place", "op": "embedding", "inputs": ["positions", "place.weight"]},
    {"name": "states", "op": "add", "inputs": ["word", "place"]},
]
_POOLED: list[Node] = [*_STATES, {"name": "vector", "op": "pool_tokens", "inputs": ["states"], "kind": "mean"}]
_TEXT: dict[str, list[object]] = {"token_ids": ["T"], "positions": ["T"]}
_TABLES = {"word.weight": (8, WIDTH), "place.weight": (16, WIDTH)}
_LABELS = {"0": "ant", "1": "bee", "2": "wasp"}


def _linear(name: str, source: str) -> Node:
    return {"name": name, "op": "linear", "inputs": [source, "fc.weight"]}


# kind: inputs, nodes, weights, labels, processing
KINDS: dict[str, tuple[dict[str, list[object]], list[Node], dict[str, tuple[int, ...]], dict[str, str], str]] = {
    "encoder": (_TEXT, _STATES, _TABLES, {}, ""),
    "classifier": (_TEXT, [*_POOLED, _linear("logits", "vector")], _TABLES | {"fc.weight": (3, WIDTH)}, _LABELS, ""),
    "cross": (_TEXT, [*_POOLED, _linear("logits", "vector")], _TABLES | {"fc.weight": (1, WIDTH)}, {"0": "fits"}, ""),
    "rows": ({"x": ["B", 4]}, [_linear("logits", "x")], {"fc.weight": (3, 4)}, _LABELS, ""),
    "plain": ({"x": ["B", 4]}, [_linear("out", "x")], {"fc.weight": (3, 4)}, {}, ""),
    "two": (
        {"x": ["B", 4], "y": ["B", 4]},
        [{"name": "out", "op": "add", "inputs": ["x", "y"]}],
        {},
        {},
        "",
    ),
    "image": (
        {"pixels": ["B", 3, 4, 4]},
        [{"name": "flat", "op": "flatten", "inputs": ["pixels"]}, _linear("logits", "flat")],
        {"fc.weight": (2, 48)},
        {"0": "cat", "1": "dog"},
        'image = [{step = "resize", height = 4, width = 4}, {step = "scale"}]',
    ),
}


def weights_of(kind: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in KINDS[kind][2].items()}


def write_predictor(folder: Path, kind: str) -> Path:
    inputs, nodes, _, labels, processing = KINDS[kind]
    folder.mkdir()
    np.savez(folder / "weights.npz", **(weights_of(kind) or {"none": np.zeros(1, np.float32)}))
    document = {"aie_graph": 1, "inputs": inputs, "nodes": nodes, "outputs": [nodes[-1]["name"]]}
    (folder / "graph.json").write_text(json.dumps(document))
    if labels:
        (folder / "config.json").write_text(json.dumps({"id2label": labels}))
    if processing:
        (folder / "processing.toml").write_text(processing)
    if inputs is _TEXT:
        made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.save(str(folder / "tokenizer.json"))
    return folder


class HandPredictor:
    """A `PredictorClient` whose futures the test resolves, or `script` at once."""

    def __init__(self, script: Callable[[PredictRequest], Any] | None = None, *, max_queue: int = 8) -> None:
        array = ArrayInfo("x", (4,), "float32")
        self.info = PredictorInfo(
            name="hand", architecture="graph", inputs=(array,), outputs=(array,), output="values", labels=(),
            problem=None, max_length=None, reads_text=False, max_batch_size=4, max_queue=max_queue, kernels="numpy",
            num_threads=1,
        )  # fmt: skip
        self.is_alive = True
        self.script = script
        self.fail_submit: Exception | None = None
        self.requests: list[PredictRequest] = []
        self.futures: list[PredictFuture] = []
        self.most_open = 0
        self.is_draining = False
        self._changed = threading.Condition()

    def submit(self, request: PredictRequest) -> PredictFuture:
        if self.fail_submit is not None:
            raise self.fail_submit
        future = PredictFuture(request.request_id, self._cancel)
        with self._changed:
            self.requests.append(request)
            self.futures.append(future)
            self.most_open = max(self.most_open, sum(not one.done for one in self.futures))
            self._changed.notify_all()
        if self.script is not None:
            self.answer(len(self.futures) - 1)
        return future

    def answer(self, index: int, outputs: Any = None) -> None:
        """Resolve the future with this index: with arrays, an error, or what the script says."""
        if outputs is None:
            assert self.script is not None
            outputs = self.script(self.requests[index])
        facts = BatchFacts(1, "full", 0.002, 0.003, 0.0, 0.0, 0)
        self.futures[index].resolve(Prediction(outputs, facts) if isinstance(outputs, Mapping) else outputs)

    def wait_for_requests(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, WAIT_S), "too few requests came"

    def wait_until_resolved(self, index: int) -> None:
        done = threading.Event()
        self.futures[index].add_done_callback(lambda _: done.set())
        assert done.wait(WAIT_S), "the future was left unresolved"

    def stats(self) -> PredictorStats:
        workers = [WorkerStats(index, 0, index > 0, False, 1, 4, 0.0, restarts=index) for index in range(3)]
        return PredictorStats(
            num_waiting=3,
            rows=8,
            batches=2,
            reasons={"full": 2},
            max_batch_size=4,
            resent_batches=5,
            workers=tuple(workers),
        )

    def memory(self) -> Mapping[str, object]:
        return {}

    def watch(self, on_batch: Any) -> None:
        self.on_batch = on_batch

    def drain(self) -> None:
        self.is_draining = True

    def close(self, timeout_s: float = 10.0) -> None:
        self.is_alive = False

    def _cancel(self, future: PredictFuture) -> bool:
        return future.resolve(RequestCancelledError("cancelled"))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Callable[..., ServedPredictor]]:
    """A served predictor of one of `KINDS`: with the real engine on NumPy, or `predictor` in its place."""
    made: list[LocalPredictor] = []

    def make(kind: str, predictor: Any = None, **config: Any) -> ServedPredictor:
        folder = write_predictor(tmp_path / kind, kind)
        if predictor is None:
            settings = PredictorConfig(folder, kernels="numpy", num_threads=1, max_wait_ms=0.5, **config)
            made.append(predictor := LocalPredictor(settings))
        return ServedPredictor(kind, predictor, load_pipeline(folder, max_tokens=8), created=1)

    yield make
    for predictor in made:
        predictor.close()


@pytest.fixture
def serve(harness: Any, model: Callable[..., ServedPredictor]) -> Callable[..., Any]:
    """A server of these kinds; a hand predictor where one is given."""

    def make(*kinds: str, predictor: Any = None, **kwargs: Any) -> Any:
        server = Server(predictors=[model(kind, predictor) for kind in kinds], port=0, **kwargs)
        server.start()
        harness._servers.append(server)
        return server

    return make


@pytest.fixture
def hand() -> type[HandPredictor]:
    return HandPredictor


@pytest.fixture
def weights() -> Callable[[str], dict[str, np.ndarray]]:
    return weights_of
