"""Packed weights that several workers map: the same numbers, one copy, and nothing left behind."""

import os
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from aie_engine import ModelCheckError, PredictorConfig, PredictRequest, WorkerPredictor
from aie_engine.executors import NativeStatelessExecutor
from aie_engine.executors.shared_weights import SharedMemory, SharedWeights, can_share
from aie_loader import fuse, load_predictor
from aie_tensor import DType, Matrix, MemoryPool, NativeUnavailableError, native, quantize
from aie_tensor.memdebug import snapshot_from_json

TIMEOUT_S = 60.0

try:
    LIBRARY = native.load()
except NativeUnavailableError:
    LIBRARY = None

pytestmark = [
    pytest.mark.skipif(LIBRARY is None, reason="weights are packed for native kernels, and there is no C compiler"),
    pytest.mark.skipif(not can_share(), reason="this system hands no open files to the processes it spawns"),
]


@pytest.fixture
def memory():
    made = SharedMemory()
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    random = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("mlp") / "mlp.npz"
    weights = {"a": (48, 20), "b": (7, 48)}
    np.savez(path, **{f"{name}.weight": random.standard_normal(shape, np.float32) for name, shape in weights.items()})
    return path


def matrix(n, k, dtype=DType.F32, seed=0):
    values = np.random.default_rng(seed).standard_normal((n, k), np.float32)
    return Matrix.from_array(values) if dtype is DType.F32 else quantize(values, dtype)


def owners_of(snapshot):
    """What somebody holds in a worker, by the ledger."""
    return {group.what for group in snapshot_from_json(snapshot).groups}


def until(condition):
    """A worker's start takes as long as it takes."""
    pause = threading.Event()
    for _ in range(int(TIMEOUT_S * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def must_not_pack():
    raise AssertionError("what is there must not be packed again")


@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0, DType.Q4_1])
def test_the_second_finds_what_the_first_packed(memory, dtype):
    first = SharedWeights(memory, 1 << 20)
    made = {name: first.packed(LIBRARY, name, (n, 64), lambda n=n: matrix(n, 64, dtype, seed=n)) for name, n in
            (("one", 5), ("two", 40))}  # fmt: skip
    first.finish()
    second = SharedWeights(memory, 1 << 20)
    assert first.is_maker and not second.is_maker and second.nbytes == first.nbytes
    for name, own in made.items():
        found = second.packed(LIBRARY, name, (own.n, own.k), must_not_pack)
        expected = native.PackedMatrix.pack(LIBRARY, matrix(own.n, 64, dtype, seed=own.n))
        assert (found.format, found.n, found.k) == (expected.format, expected.n, expected.k)
        np.testing.assert_array_equal(found.data, expected.data)
        assert found.data.ctypes.data % 64 == 0 and not found.data.flags.writeable
    # The same memory and no copy of it: what is written here is read there. (No worker ever does that.)
    made["one"].data[0] ^= 1
    assert second.packed(LIBRARY, "one", (5, 64), must_not_pack).data[0] == made["one"].data[0]


@pytest.mark.parametrize(("name", "shape"), [("missing", (5, 64)), ("one", (6, 64)), ("one", (5, 32))])
def test_another_models_weights_are_refused(memory, name, shape):
    first = SharedWeights(memory, 1 << 20)
    first.packed(LIBRARY, "one", (5, 64), lambda: matrix(5, 64))
    first.finish()
    with pytest.raises(ModelCheckError, match=name):
        SharedWeights(memory, 1 << 20).packed(LIBRARY, name, shape, must_not_pack)


def test_a_maker_that_did_not_finish_leaves_the_work_to_the_next(memory):
    SharedWeights(memory, 1 << 20).packed(LIBRARY, "one", (5, 64), lambda: matrix(5, 64, seed=1))
    second = SharedWeights(memory, 1 << 20)
    assert second.is_maker
    again = second.packed(LIBRARY, "one", (5, 64), lambda: matrix(5, 64))
    np.testing.assert_array_equal(again.data, native.PackedMatrix.pack(LIBRARY, matrix(5, 64)).data)


def test_an_executor_computes_the_same_from_shared_weights_and_holds_none_itself(memory, model):
    x = {"x": np.random.default_rng(1).standard_normal((5, 20), np.float32)}
    answers, live = [], []
    for shared in (None, memory, memory):
        pool = MemoryPool()
        with closing(load_predictor(model, input_shape=(20,))) as predictor:
            executor = NativeStatelessExecutor(fuse(predictor.graph), LIBRARY, num_threads=1, pool=pool, shared=shared)
            [answer] = executor.run(x).values()
            answers.append(answer)
            live.append(pool.stats().live_bytes)
            executor.close()
        assert pool.stats().live_bytes == pool.stats().mapped_bytes == 0
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])
    assert live[0] - live[1] >= 4 * (48 * 20 + 16 * 48) and live[1] == live[2]


def test_workers_share_and_so_does_one_that_is_started_again(model):
    config = PredictorConfig(model, input_shape=(20,), kernels="native", num_threads=1, max_wait_ms=0.0, memdebug=True)
    workers = WorkerPredictor(config, 2, pause_s=0.0)
    try:
        x = np.random.default_rng(2).standard_normal(20, np.float32)

        def answer(name):
            return workers.submit(PredictRequest(name, {"x": x})).result(TIMEOUT_S).outputs["b"]

        expected = answer("before")
        for place in ("predict-0", "predict-1"):
            owners = owners_of(workers.memory()[place])
            assert "packed weights, shared" in owners and "packed weights" not in owners
        for lane in range(2):
            old = workers.pids[lane]
            os.kill(old, 9)  # started by this test
            until(
                lambda lane=lane, old=old: workers.stats().workers[lane].restarts and workers.pids[lane] not in (0, old)
            )
            for number in range(4):
                np.testing.assert_array_equal(answer(f"after {lane} {number}"), expected)
    finally:
        workers.close()
    folder = Path("/proc/self/fd")
    if folder.exists():  # nobody holds the memory any more
        assert not [name for name in folder.iterdir() if "aie-weights" in str(name.resolve())]


def test_without_sharing_each_has_its_own(model):
    config = PredictorConfig(
        model, input_shape=(20,), kernels="native", num_threads=1, share_weights=False, memdebug=True
    )
    workers = WorkerPredictor(config, 2)
    try:
        for memory in workers.memory().values():
            owners = owners_of(memory)
            assert "packed weights" in owners and "packed weights, shared" not in owners
    finally:
        workers.close()
