"""Predictors in this process: what is refused, bits that do not depend on company, one outcome for every request."""

import gc
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_engine import (
    DeadlinePassedError,
    EngineDeadError,
    InvalidInputError,
    LocalPredictor,
    ModelCheckError,
    PredictionFailedError,
    PredictorConfig,
    PredictRequest,
    QueueFullError,
    RequestCancelledError,
    RequestTooLongError,
)
from aie_engine.errors import NotFiniteError
from aie_engine.predictors.batching import make_batcher
from aie_engine.predictors.books import Member
from aie_engine.predictors.build import build_predictor
from aie_engine.predictors.front import BatchFront
from aie_engine.predictors.protocol import ArrayInfo, PredictorInfo
from aie_engine.predictors.requests import PredictFuture
from aie_engine.predictors.runner import BatchResult, BatchRunner
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


# From here on: the front by hand, on a clock of the test's, with lanes that do what the test says.

INFO = PredictorInfo(
    name="fake", architecture="", inputs=(ArrayInfo("x", (1,), "float32"),), outputs=(), output="values", labels=(),
    problem=None, max_length=None, reads_text=False, max_batch_size=4, max_queue=6, kernels="numpy", num_threads=1,
)  # fmt: skip


class Hand:
    """A lane that keeps its batch until it is told what comes of it."""

    def __init__(self, index, front):
        self.index, self.front, self.batch = index, front, None

    def start(self, batch):
        assert self.batch is None, "one batch at a time"
        self.batch = batch

    def finish(self, failing=()):
        batch, self.batch = self.batch, None
        items = [
            PredictionFailedError("poison") if member.request_id in failing else {"y": member.item["x"] * 2}
            for member in batch.members
        ]
        self.front.finish(self, batch, BatchResult(items, 0.25, 0.5))

    def die(self):
        self.batch = None
        self.front.lose(self, "The worker was killed.")


class Rig:
    def __init__(self, num_lanes=1, **more):
        self.now = 100.0
        config = PredictorConfig(Path("unused"), max_batch_size=4, max_queue=6, **{"max_wait_ms": 10.0, **more})
        self.front = BatchFront(INFO, make_batcher(config), clock=lambda: self.now)
        self.lanes = [Hand(index, self.front) for index in range(num_lanes)]
        self.front.set_lanes(self.lanes)
        self.resolved = {}  # how often each request's future has resolved
        self.futures = {}

    def submit(self, name, **more):
        future = self.front.submit(PredictRequest(name, {"x": np.ones(1)}, **more))
        self.futures[name] = future
        future.add_done_callback(lambda done: self.resolved.update({name: self.resolved.get(name, 0) + 1}))
        return future

    def names(self, lane=0):
        batch = self.lanes[lane].batch
        return None if batch is None else [member.request_id for member in batch.members]


def test_a_batch_waits_for_company_and_no_longer():
    rig = Rig()
    first = rig.submit("a")
    rig.now += 0.009
    rig.submit("b")
    rig.front.step()
    assert rig.names() is None
    rig.now += 0.001
    rig.front.step()
    assert rig.names() == ["a", "b"]
    rig.lanes[0].finish()
    facts = first.result(0).batch
    assert (facts.size, facts.reason, facts.worker, facts.compute_s, facts.pre_s) == (2, "waited", 0, 0.5, 0.25)
    assert facts.waited_s == pytest.approx(0.01)


def test_nobody_waits_for_company_that_will_not_come():
    rig = Rig()
    first = rig.submit("a")
    rig.front.step()
    assert rig.names() is None
    rig.front.drain()
    rig.front.step()
    assert rig.names() == ["a"]
    late = rig.submit("b")  # of a request that was let in before, and has more inputs than may wait
    rig.lanes[0].finish()
    rig.front.step()
    assert rig.names() == ["b"]
    rig.lanes[0].finish()
    assert [future.result(0).batch.reason for future in (first, late)] == ["drained", "drained"]


def test_who_comes_while_a_batch_runs_shares_the_next():
    rig = Rig(max_wait_ms=0.0)
    rig.submit("a")
    rig.front.step()
    for name in "bcdef":
        rig.submit(name)
    rig.front.step()
    assert rig.names() == ["a"]
    rig.lanes[0].finish()
    rig.front.step()
    assert rig.names() == ["b", "c", "d", "e"]
    stats = rig.front.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_done, stats.batches) == (1, 4, 1, 1)


def test_batches_go_to_the_idle_lane_that_has_worked_least():
    rig = Rig(num_lanes=2, max_wait_ms=0.0)
    for name in ("a", "b"):
        rig.submit(name)
        rig.front.step()
    assert rig.names(0) == ["a"] and rig.names(1) == ["b"]
    rig.lanes[0].finish()
    rig.submit("c")
    rig.front.step()
    assert rig.names(0) == ["c"]  # the only idle one
    rig.lanes[1].finish()
    rig.lanes[0].finish()
    rig.submit("d")
    rig.front.step()
    assert rig.names(1) == ["d"] and rig.names(0) is None  # one batch against two
    rig.lanes[1].finish()
    stats = rig.front.stats()
    assert [(worker.batches, worker.rows) for worker in stats.workers] == [(2, 2), (2, 2)]
    assert stats.reasons == {"waited": 4} and stats.utilisation == 0.25


def test_priorities_first_and_a_full_room_refuses():
    rig = Rig(max_wait_ms=0.0)
    for index in range(6):
        rig.submit(f"r{index}", priority=1)
    with pytest.raises(QueueFullError):
        rig.submit("one too many")
    rig.futures["r5"].cancel()
    rig.submit("urgent", priority=0)
    rig.front.step()
    assert rig.names() == ["urgent", "r0", "r1", "r2"]
    with pytest.raises(InvalidInputError, match="in use"):
        rig.submit("r0")
    assert rig.front.stats().num_refused == 2


def test_who_cancels_or_runs_out_of_time_is_never_computed():
    rig = Rig(max_wait_ms=0.0)
    rig.submit("running", deadline_s=101.0)
    rig.front.step()
    gone, late, stays = rig.submit("gone"), rig.submit("late", deadline_s=100.5), rig.submit("stays")
    assert gone.cancel() and not gone.cancel()
    with pytest.raises(RequestCancelledError):
        gone.result(0)
    rig.now = 100.5  # while the only lane is busy
    rig.front.step()
    with pytest.raises(DeadlinePassedError):
        late.result(0)
    rig.now = 101.0  # even the one under way
    rig.front.step()
    assert isinstance(rig.futures["running"].error(), DeadlinePassedError)
    rig.lanes[0].finish()
    rig.front.step()
    assert rig.names() == ["stays"]
    assert stays.cancel()  # under way: told at once, and its result is dropped
    again = rig.submit("stays")  # the name is free again
    rig.lanes[0].finish()
    assert not again.done
    rig.front.step()
    rig.lanes[0].finish()
    assert again.result(0).outputs["y"] == 2
    stats = rig.front.stats()
    assert (stats.num_cancelled, stats.num_expired, stats.num_done) == (2, 2, 1)


def test_a_dead_workers_batch_goes_to_another_once():
    rig = Rig(num_lanes=2, max_wait_ms=0.0)
    rig.submit("a")
    rig.submit("b")
    rig.front.step()
    assert rig.names(0) == ["a", "b"]
    rig.futures["b"].cancel()
    rig.lanes[0].die()
    rig.front.step()
    assert rig.names(1) == ["a"] and rig.front.stats().resent_batches == 1
    rig.lanes[1].die()
    with pytest.raises(EngineDeadError, match="was killed"):
        rig.futures["a"].result(0)
    rig.submit("c")
    rig.front.step()
    assert rig.names(0) is rig.names(1) is None  # nobody there
    rig.front.revive(rig.lanes[1])
    rig.front.step()
    assert rig.names(1) == ["c"]


def test_the_end_fails_who_waits_and_lets_the_running_batch_finish():
    rig = Rig(max_wait_ms=0.0)
    running = rig.submit("running")
    rig.front.step()
    waiting = rig.submit("waiting")
    rig.front.end("closed")
    with pytest.raises(EngineDeadError, match="closed"):
        waiting.result(0)
    assert not running.done and not rig.front.wait_idle(0)
    rig.lanes[0].finish()
    assert running.result(0).outputs["y"] == 2 and rig.front.wait_idle(0)
    assert not rig.front.is_alive


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["submit", "cancel", "step", "pass", "finish", "fail", "die", "revive"]),
              st.integers(0, 7)), max_size=60,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, num_lanes=st.integers(1, 3), ends_early=st.booleans())
def test_every_future_resolves_exactly_once_whatever_happens(actions, num_lanes, ends_early):
    rig = Rig(num_lanes=num_lanes, max_wait_ms=2.0)
    dead, num_submitted = set(), 0
    for action, number in actions:
        lane = rig.lanes[number % num_lanes]
        if action == "submit":
            name, deadline_s = f"r{num_submitted}", rig.now + 0.004 if number % 3 == 0 else None
            num_submitted += 1
            try:
                rig.submit(name, priority=number % 2, deadline_s=deadline_s)
            except QueueFullError:
                assert name not in rig.futures
        elif action == "cancel" and rig.futures:
            list(rig.futures.values())[number % len(rig.futures)].cancel()
        elif action == "step":
            rig.front.step()
        elif action == "pass":
            rig.now += 0.001 * number
        elif action in ("finish", "fail") and lane.batch is not None:
            lane.finish([member.request_id for member in lane.batch.members] if action == "fail" else ())
        elif action == "die" and lane.index not in dead:
            lane.die()
            dead.add(lane.index)
        elif action == "revive" and lane.index in dead:
            rig.front.revive(lane)
            dead.discard(lane.index)
    if ends_early:
        rig.front.end("closed")
    for index in dead:
        rig.front.revive(rig.lanes[index])
    for _ in range(len(rig.futures) + 2):
        rig.now += 1.0
        rig.front.step()
        for lane in rig.lanes:
            if lane.batch is not None:
                lane.finish()
    assert all(future.done for future in rig.futures.values())
    assert rig.resolved == dict.fromkeys(rig.futures, 1)
    stats = rig.front.stats()
    assert stats.num_done + stats.num_failed + stats.num_cancelled + stats.num_expired == len(rig.futures)
    assert stats.num_waiting == stats.num_running == 0


def test_a_front_that_fails_tells_everybody(monkeypatch):
    rig = Rig(max_wait_ms=0.0)
    future = rig.submit("a")
    monkeypatch.setattr(rig.lanes[0], "start", lambda batch: 1 // 0)
    rig.front.run()
    rig.front.lose(rig.lanes[0], "gone")
    with pytest.raises(EngineDeadError):
        future.result(0)
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        rig.submit("b")


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
