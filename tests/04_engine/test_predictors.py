"""Predictors in this process: what is refused, bits that do not depend on company, one outcome for every request."""

import gc
import json
import threading
import time

import numpy as np
import pytest

from aie_engine import (
    DeadlinePassedError,
    EngineDeadError,
    InvalidInputError,
    LocalPredictor,
    ModelCheckError,
    PredictionFailedError,
    PredictorConfig,
    PredictRequest,
    RequestTooLongError,
)
from aie_engine.errors import NotFiniteError
from aie_engine.predictors.books import Member
from aie_engine.predictors.build import build_predictor
from aie_engine.predictors.protocol import ArrayInfo
from aie_engine.predictors.requests import PredictFuture
from aie_engine.predictors.runner import BatchRunner
from aie_engine.predictors.signature import signature_of
from aie_loader.graph_builder import GraphBuilder, build_graph
from aie_tensor import Matrix, MemoryPool, NativeUnavailableError, native

TIMEOUT_S = 60.0
VOCAB, WIDTH, LONGEST = 40, 16, 24


def made(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32) / 4


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """12 → 8 → 3, as a file of weights."""
    path = tmp_path_factory.mktemp("mlp") / "mlp.npz"
    np.savez(path, **{"a.weight": made(8, 12), "a.bias": made(8), "b.weight": made(3, 8), "b.bias": made(3)})
    return path


def config_for(mlp, **more):
    return PredictorConfig(mlp, input_shape=(12,), **{"num_threads": 1, "max_wait_ms": 0.0, **more})


@pytest.fixture(params=["numpy", pytest.param("native", marks=pytest.mark.native)])
def kernels(request):
    if request.param == "native":
        try:
            native.load()
        except NativeUnavailableError as error:
            pytest.skip(str(error))
    return request.param


@pytest.fixture
def predictor(mlp, kernels):
    made_here = LocalPredictor(config_for(mlp, kernels=kernels, max_batch_size=8))
    yield made_here
    made_here.close()


def rows(num, seed=1):
    return np.random.default_rng(seed).standard_normal((num, 12), dtype=np.float32)


def ask(predictor, x):
    futures = [predictor.submit(PredictRequest(f"r{index}", {"x": row})) for index, row in enumerate(x)]
    return [future.result(TIMEOUT_S) for future in futures]


def encoder(path, **more):
    """A one-layer encoder as a graph file: an embedding and a state for each token."""
    tables = {"table": made(VOCAB, WIDTH), "places": made(LONGEST, WIDTH), "types": made(2, WIDTH)}
    names = ("q", "k", "v", "o")
    sizes = {"num_heads": 2, "num_kv_heads": 2, "head_dim": WIDTH // 2, "scale": 0.25}
    nodes = [
        {"name": "words", "op": "embedding", "inputs": ["token_ids", "table"]},
        {"name": "where", "op": "embedding", "inputs": ["positions", "places"]},
        {"name": "which", "op": "embedding", "inputs": ["token_types", "types"]},
        {"name": "sum", "op": "add", "inputs": ["words", "where"]},
        {"name": "h", "op": "add", "inputs": ["sum", "which"]},
        *({"name": f"h{name}", "op": "linear", "inputs": ["h", name]} for name in "qkv"),
        {"name": "mixed", "op": "encoder_attention", "inputs": ["hq", "hk", "hv"], **sizes},
        {"name": "y", "op": "linear", "inputs": ["mixed", "o"]},
        {"name": "mean", "op": "pool_tokens", "inputs": ["y"], "kind": "mean"},
        {"name": "unit", "op": "l2_normalize", "inputs": ["mean"]},
    ]
    inputs = {"token_ids": ["T"], "positions": ["T"], "token_types": ["T"]}
    document = {"aie_graph": 1, "inputs": inputs, "nodes": nodes, "outputs": ["unit", "y"]}
    (path / "graph.json").write_text(json.dumps(document))
    np.savez(path / "weights.npz", **tables, **{name: made(WIDTH, WIDTH, seed=i) for i, name in enumerate(names)})
    return PredictorConfig(path, **{"num_threads": 1, "max_wait_ms": 0.0, "max_batch_tokens": 64, **more})


def test_what_a_predictor_says_of_itself(predictor, kernels):
    info = predictor.info
    assert (info.name, info.output, info.kernels, info.num_workers) == ("mlp", "logits", kernels, 1)
    assert info.inputs == (ArrayInfo("x", (12,), "float32"),)
    assert info.outputs == (ArrayInfo("b", (3,), "float32"),)
    assert not info.reads_text and info.max_length is None


def test_results_are_the_models_and_the_same_bits_in_any_company(predictor):
    x = rows(50)
    together = ask(predictor, x)
    graph = build_graph(
        {"a.weight": Matrix.from_array(made(8, 12)), "a.bias": Matrix.from_array(made(8)),
         "b.weight": Matrix.from_array(made(3, 8)), "b.bias": Matrix.from_array(made(3))}, (12,)
    )  # fmt: skip
    from aie_engine.executors import StatelessExecutor

    expected = StatelessExecutor(graph).run({"x": x})["b"]
    for row, prediction, wanted in zip(x, together, expected, strict=True):
        np.testing.assert_allclose(prediction.outputs["b"], wanted, rtol=1e-5, atol=1e-6)
        (alone,) = ask(predictor, row[None])
        np.testing.assert_array_equal(alone.outputs["b"], prediction.outputs["b"])
        assert alone.batch.size == 1


def test_texts_of_all_lengths_in_any_company(tmp_path, kernels):
    random = np.random.default_rng(3)
    texts = [random.integers(0, VOCAB, length) for length in (1, 24, 5, 9, 2, 17, 24, 3)]
    types = [np.arange(len(text)) % 2 for text in texts]
    predictor = LocalPredictor(
        encoder(tmp_path, kernels=kernels, max_wait_ms=1e6, max_batch_size=len(texts), max_batch_tokens=99)
    )
    lonely = LocalPredictor(encoder(tmp_path, kernels=kernels, policy="passthrough"))
    try:
        assert predictor.info.reads_text and predictor.info.max_length == LONGEST
        assert predictor.info.inputs[1] == ArrayInfo("token_types", (-1,), "int32", 2, is_optional=True)
        requests = [
            PredictRequest(str(i), {"token_ids": text, "token_types": kind} if i % 2 else {"token_ids": text})
            for i, (text, kind) in enumerate(zip(texts, types, strict=True))
        ]
        together = [future.result(TIMEOUT_S) for future in [predictor.submit(request) for request in requests]]
        assert all(prediction.batch.reason == "full" for prediction in together)
        for request, prediction in zip(requests, together, strict=True):
            alone = lonely.submit(request).result(TIMEOUT_S)
            assert alone.batch.reason == "alone" and alone.batch.size == 1
            assert prediction.outputs["y"].shape == (len(request.inputs["token_ids"]), WIDTH)
            for name in ("unit", "y"):
                np.testing.assert_array_equal(alone.outputs[name], prediction.outputs[name])
    finally:
        predictor.close()
        lonely.close()


@pytest.mark.parametrize(
    ("inputs", "length", "match"),
    [
        ({}, 0, "mlp takes x; x is missing"),
        ({"x": np.zeros(12), "y": np.zeros(1)}, 0, "y is unknown"),
        ({"x": np.zeros(11)}, 0, r"x must be \[12\], not \[11\]"),
        ({"x": np.zeros((1, 12))}, 0, r"not \[1, 12\]"),
        ({"x": np.array(["a"] * 12)}, 0, "x holds numbers, not <U1"),
        ({"x": np.array([0.0] * 11 + [np.nan])}, 0, r"x must hold finite numbers; at \[11\] it holds nan"),
        ({"x": np.array([0.0, np.inf] + [0.0] * 10)}, 0, r"at \[1\] it holds inf"),
        ({"x": np.array([1e300] + [0.0] * 11)}, 0, r"at \[0\] it holds 1e\+300"),
        ({"x": np.zeros(12)}, 3, "length is 3, but the inputs have 1"),
    ],
)
def test_a_bad_input_is_refused_before_it_waits(predictor, inputs, length, match):
    with pytest.raises(InvalidInputError, match=match):
        predictor.submit(PredictRequest("bad", inputs, length))
    assert predictor.stats().num_refused == 1
    assert len(ask(predictor, rows(1))) == 1


@pytest.mark.parametrize(
    ("inputs", "error", "match"),
    [
        ({"token_ids": np.zeros(0, int)}, InvalidInputError, "empty"),
        ({"token_ids": np.zeros(25, int)}, RequestTooLongError, "25 tokens; .* reads at most 24"),
        ({"token_ids": np.array([0, VOCAB])}, InvalidInputError, "token_ids must lie in 0…39; given 0…40"),
        ({"token_ids": np.array([-1])}, InvalidInputError, "token_ids must lie in"),
        ({"token_ids": np.array([0.5])}, InvalidInputError, "token_ids holds indices, not float64"),
        ({"token_ids": np.array([1]), "token_types": np.array([2])}, InvalidInputError, "token_types must lie in 0…1"),
        ({"token_ids": np.array([1]), "token_types": np.array([1, 1])}, InvalidInputError, "each of the 1 tokens"),
        ({"token_ids": np.array([1]), "positions": np.array([0])}, InvalidInputError, "positions is unknown"),
    ],
)
def test_a_bad_text_is_refused(tmp_path, inputs, error, match):
    predictor = LocalPredictor(encoder(tmp_path, kernels="numpy"))
    try:
        with pytest.raises(error, match=match):
            predictor.submit(PredictRequest("bad", inputs))
    finally:
        predictor.close()


def test_a_graph_whose_items_cannot_share_a_run(tmp_path):
    document = {"aie_graph": 1, "inputs": {"boxes": ["N", 4], "scores": ["N"]}, "outputs": ["kept"],
                "nodes": [{"name": "kept", "op": "nms", "inputs": ["boxes", "scores"], "iou": 0.5}]}  # fmt: skip
    (tmp_path / "graph.json").write_text(json.dumps(document))
    np.savez(tmp_path / "weights.npz", unused=np.zeros(1, np.float32))
    predictor = LocalPredictor(PredictorConfig(tmp_path, kernels="numpy", max_wait_ms=0.0))
    try:
        assert predictor.info.inputs[0].shape == (-1, 4) and predictor.info.outputs[0].dtype == "int64"
        boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 2.1], [5, 5, 6, 6]])
        for num in (3, 2, 1):
            request = PredictRequest("r", {"boxes": boxes[:num], "scores": np.array([0.5, 0.9, 0.1])[:num]})
            kept = predictor.submit(request).result(TIMEOUT_S).outputs["kept"]
            assert kept.tolist() == [[1, 2], [1], [0]][3 - num]
    finally:
        predictor.close()


def test_everything_is_given_back(mlp, kernels):
    predictor = LocalPredictor(config_for(mlp, kernels=kernels))
    ask(predictor, rows(40))
    held = predictor.memory()["predict"]["pools"][0]["stats"]
    assert held["live_bytes"] > 0
    predictor.close()
    predictor.close()
    after = predictor.memory()["predict"]["pools"][0]["stats"]
    assert after["live_bytes"] == after["reserved_bytes"] == after["mapped_bytes"] == 0
    assert not any(thread.name == "aie-predict" for thread in threading.enumerate())
    with pytest.raises(EngineDeadError, match="closed"):
        predictor.submit(PredictRequest("late", {"x": np.zeros(12)}))


def test_memory_stays_where_it_was(predictor):
    ask(predictor, rows(30))
    before = predictor.memory()["predict"]["pools"][0]["stats"]["live_bytes"]
    for _ in range(5):
        ask(predictor, rows(30))
    assert predictor.memory()["predict"]["pools"][0]["stats"]["live_bytes"] == before


def test_weights_that_do_not_compute(tmp_path):
    np.savez(tmp_path / "broken.npz", **{"a.weight": np.full((2, 12), np.nan, np.float32)})
    with pytest.raises(ModelCheckError, match=r"broken\.npz does not compute"):
        LocalPredictor(config_for(tmp_path / "broken.npz"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_batch_size", 0), ("policy", "continuous"), ("kernels", "fast"), ("max_wait_ms", -1), ("max_batch_tokens", 1),
     ("preferred_sizes", (99,)), ("batch_timeout_s", 0.0), ("bucket_edges", (4, 2))],
)  # fmt: skip
def test_settings_that_make_no_sense(mlp, field, value):
    with pytest.raises(InvalidInputError, match=field):
        LocalPredictor(config_for(mlp, **{field: value}))


# The runner, with an executor that chokes on what the test says.


def chain(num_poisoned, num_items, raising=None):
    """Results of a batch of 0, 1, 2, …, of which some are poison, and how often the executor ran."""
    g = GraphBuilder({})
    graph = g.build(g.op("relu", g.input("x", ("B", 1)), name="y"))
    runs = []

    class Executor:
        def run(self, inputs, starts=None):
            x = inputs["x"]
            runs.append(x[:, 0].tolist())
            if raising is not None and (x[:, 0] < num_poisoned).any():
                raise raising("choked")
            return {"y": np.where(x < num_poisoned, np.nan, x)}

    pool = MemoryPool()
    runner = BatchRunner(
        signature_of(graph), Executor(), pool, max_batch_size=num_items, max_batch_tokens=num_items, one_by_one=False
    )
    result = runner.run([{"x": np.array([index], np.float32)} for index in range(num_items)])
    runner.close()
    assert pool.stats().live_bytes == 0
    return result, runs


def test_the_batch_mates_of_a_poison_succeed():
    result, runs = chain(1, 8, RuntimeError)
    assert isinstance(result.items[0], PredictionFailedError) and "RuntimeError: choked" in str(result.items[0])
    assert [item["y"].tolist() for item in result.items[1:]] == [[float(index)] for index in range(1, 8)]
    assert [len(run) for run in runs] == [8, 4, 2, 1, 1, 2, 4]  # halves, and halves of the bad half


def test_an_error_of_ours_stays_what_it_is_and_not_a_number_is_none():
    result, _ = chain(2, 3, InvalidInputError)
    assert [type(item) for item in result.items] == [InvalidInputError, InvalidInputError, dict]
    result, runs = chain(1, 3)
    assert isinstance(error := result.items[0], NotFiniteError) and len(runs) == 1
    assert (error.status, error.code) == (422, "not_finite") and "y, which it computes of them, holds NaN" in str(error)
    assert result.items[2]["y"].tolist() == [2.0]


def test_a_future_tells_everybody_once():
    future, seen = PredictFuture("r", lambda own: False), []
    future.add_done_callback(lambda done: seen.append("before"))
    future.add_done_callback(lambda done: 1 // 0)
    with pytest.raises(TimeoutError, match="not there within 0 s"):
        future.result(0)

    def wait():
        try:
            future.result(TIMEOUT_S)
        except EngineDeadError:
            seen.append("waiter")

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert future.resolve(EngineDeadError("gone")) and not future.resolve(EngineDeadError("again"))
    waiter.join(TIMEOUT_S)
    future.add_done_callback(lambda done: seen.append("after"))
    assert sorted(seen) == ["after", "before", "waiter"]
    assert str(future.error()) == "gone"


def test_closing_while_a_batch_runs(mlp):
    inside, gate = threading.Event(), threading.Event()

    def build(config, report):
        parts = build_predictor(config, report)
        run = parts.runners[0].run

        def slow(items, staged=None):
            inside.set()
            assert gate.wait(TIMEOUT_S)
            return run(items, staged)

        parts.runners[0].run = slow
        return parts

    predictor = LocalPredictor(config_for(mlp, kernels="numpy", max_batch_size=1), build=build)
    running = predictor.submit(PredictRequest("running", {"x": np.zeros(12)}))
    assert inside.wait(TIMEOUT_S)
    waiting = predictor.submit(PredictRequest("waiting", {"x": np.zeros(12)}))
    with pytest.raises(TimeoutError, match="did not end"):
        predictor.close(timeout_s=0.0)
    with pytest.raises(EngineDeadError):
        waiting.result(TIMEOUT_S)
    gate.set()
    predictor.close()
    assert running.result(0).outputs["b"].shape == (3,)


def test_the_next_batch_is_staged_while_one_is_computed(mlp, kernels):
    staged_next, num_staged = threading.Event(), []

    def build(config, report):
        parts = build_predictor(config, report)
        for runner in parts.runners:
            runner.stage = lambda items, stage=runner.stage: note(stage(items))
            runner.run = lambda items, staged, run=runner.run: wait(run, items, staged)
        return parts

    def note(staged):
        num_staged.append(1)
        if len(num_staged) == 2:
            staged_next.set()
        return staged

    def wait(run, items, staged):
        assert staged_next.wait(TIMEOUT_S)  # the first run ends only when the second batch is staged
        return run(items, staged)

    plain = LocalPredictor(config_for(mlp, kernels=kernels))
    predictor = LocalPredictor(config_for(mlp, kernels=kernels, overlap=True, max_batch_size=4), build=build)
    before = set(threading.enumerate())
    try:
        for found, expected in zip(ask(predictor, rows(50)), ask(plain, rows(50)), strict=True):
            np.testing.assert_array_equal(found.outputs["b"], expected.outputs["b"])
        assert {worker.index for worker in predictor.stats().workers if worker.batches} == {0, 1}
    finally:
        predictor.close()
        plain.close()
    assert len(before - set(threading.enumerate())) == 5  # both fronts, and three streams
    assert predictor.memory()["predict"]["pools"][0]["stats"]["reserved_bytes"] == 0


def test_a_sleeping_front_wakes_for_whoever_cannot_wait(mlp):
    predictor = LocalPredictor(config_for(mlp, kernels="numpy", max_wait_ms=1e9))
    try:
        patient = predictor.submit(PredictRequest("patient", {"x": np.zeros(12)}))
        hurried = predictor.submit(PredictRequest("hurried", {"x": np.zeros(12)}, deadline_s=time.monotonic() + 0.2))
        try:
            assert hurried.result(TIMEOUT_S).batch.reason == "deadline"
        except DeadlinePassedError:  # a machine so busy that it was too late; the front woke all the same
            patient.cancel()
        assert patient.done or patient.result(TIMEOUT_S).batch.size == 2
    finally:
        predictor.close()


def test_what_is_done_is_not_kept_until_its_deadline(predictor):
    deadline_s = time.monotonic() + 3600
    for _ in range(10):
        asked = [PredictRequest(f"r{index}", {"x": row}, deadline_s=deadline_s) for index, row in enumerate(rows(40))]
        futures = [predictor.submit(request) for request in asked]
        for future in futures:
            future.result(TIMEOUT_S)
    gc.collect()
    assert sum(isinstance(one, Member) for one in gc.get_objects()) < 200  # of 400
