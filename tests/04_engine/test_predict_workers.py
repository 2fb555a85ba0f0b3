"""Predictors in worker processes: the same answers, and every way in which a worker can go."""

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import psutil
import pytest

from aie_engine import (
    EngineDeadError,
    InvalidInputError,
    LocalPredictor,
    PredictorConfig,
    PredictRequest,
    WorkerPredictor,
)
from aie_engine.predictors import lane
from aie_loader import MissingFileError

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    random = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("mlp") / "mlp.npz"
    np.savez(path, **{"a.weight": random.standard_normal((6, 4), np.float32), "b.weight": np.eye(6, dtype=np.float32)})
    return PredictorConfig(path, input_shape=(4,), kernels="numpy", num_threads=1, max_batch_size=4, max_wait_ms=0.0)


@pytest.fixture(scope="module")
def workers(config):
    made = WorkerPredictor(config, 2, pause_s=0.0)
    yield made
    made.close()


def submit(predictor, num, seed=0):
    x = np.random.default_rng(seed).standard_normal((num, 4), np.float32)
    return [predictor.submit(PredictRequest(f"{seed}/{index}", {"x": row})) for index, row in enumerate(x)]


def outputs(futures):
    return [future.result(TIMEOUT_S).outputs["b"] for future in futures]


def until(condition):
    """A worker's end or start takes as long as it takes."""
    pause = threading.Event()
    for _ in range(int(TIMEOUT_S * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_the_same_bits_as_in_this_process_from_whichever_worker(config, workers):
    local = LocalPredictor(config)
    expected = outputs(submit(local, 60))
    local.close()
    futures = submit(workers, 60)
    np.testing.assert_array_equal(outputs(futures), expected)
    assert workers.info.num_workers == 2 and workers.info.inputs == local.info.inputs
    stats = workers.stats()
    assert sum(worker.rows for worker in stats.workers) == stats.num_done
    assert {worker.pid for worker in stats.workers} == set(workers.pids)


def test_a_bad_input_never_reaches_a_worker(workers):
    with pytest.raises(InvalidInputError, match="finite"):
        workers.submit(PredictRequest("bad", {"x": np.full(4, np.nan)}))


def test_an_item_that_fails_there_fails_alone_here(workers):
    huge = workers.submit(PredictRequest("huge", {"x": np.full(4, 3e38)}))  # finite, but a sum of it is not
    fine = submit(workers, 3, seed=9)
    assert len(outputs(fine)) == 3
    with pytest.raises(InvalidInputError, match="too large for the model") as caught:
        huge.result(TIMEOUT_S)
    assert (caught.value.status, caught.value.code) == (422, "not_finite")


def test_each_worker_says_what_it_holds(workers):
    memory = workers.memory()
    assert [snapshot["pid"] for snapshot in memory.values()] == list(workers.pids)
    assert list(memory) == ["predict-0", "predict-1"]


def test_a_worker_killed_in_a_batch_costs_nobody_the_answer(config):
    workers = WorkerPredictor(config, 2, pause_s=0.0)
    try:
        expected = outputs(submit(workers, 8, seed=1))
        victim = workers.pids[0]
        os.kill(victim, signal.SIGSTOP)  # it takes its batch, and does not answer
        futures = submit(workers, 8, seed=1)
        until(lambda: workers.stats().workers[0].is_busy)
        os.kill(victim, signal.SIGKILL)
        np.testing.assert_array_equal(outputs(futures), expected)
        stats = workers.stats()
        assert stats.resent_batches == 1 and stats.num_failed == 0
        until(lambda: workers.stats().workers[0].is_ready)
        assert workers.stats().workers[0].restarts == 1 and workers.pids[0] != victim
        assert len(workers.memory()) == 2
    finally:
        workers.close()


def test_a_batch_that_meets_two_deaths_fails_and_the_next_is_served(config):
    workers = WorkerPredictor(config, 2, pause_s=0.0)
    try:
        victims = workers.pids
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        (future,) = submit(workers, 1)
        until(lambda: workers.stats().workers[0].is_busy)
        os.kill(victims[0], signal.SIGKILL)
        until(lambda: workers.stats().workers[1].is_busy)  # it is the only other one there is
        assert not future.done
        os.kill(victims[1], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"worker 1 was killed by SIGKILL\. It was computing this request"):
            future.result(TIMEOUT_S)
        assert workers.is_alive
        assert len(outputs(submit(workers, 5, seed=3))) == 5
    finally:
        workers.close()


def test_a_worker_that_hangs_is_found_out(config):
    workers = WorkerPredictor(replace(config, batch_timeout_s=3.0), 1, pause_s=0.0)
    try:
        first = workers.pids[0]
        os.kill(first, signal.SIGSTOP)
        (future,) = submit(workers, 1)
        prediction = future.result(TIMEOUT_S)  # by its successor
        assert prediction.outputs["b"].flags.writeable and prediction.outputs["b"].base is None
        assert workers.stats().resent_batches == 1 and workers.pids[0] != first
    finally:
        workers.close()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_worker_that_is_stopped_before_a_batch_larger_than_the_pipe_is_found_out(tmp_path):
    """Writing to it would never end: no answer is waited for yet."""
    path = tmp_path / "sum.npz"
    np.savez(path, **{"a.weight": np.ones((1, 300_000), np.float32)})
    config = PredictorConfig(
        path, input_shape=(300_000,), kernels="numpy", num_threads=1, max_wait_ms=0.0, batch_timeout_s=3.0
    )
    workers = WorkerPredictor(config, 1, pause_s=0.0)
    try:
        first = workers.pids[0]
        os.kill(first, signal.SIGSTOP)
        future = workers.submit(PredictRequest("large", {"x": np.ones(300_000, np.float32)}))
        assert future.result(TIMEOUT_S).outputs["a"].tolist() == [300_000.0]  # by its successor
        assert workers.stats().resent_batches == 1 and workers.pids[0] != first
    finally:
        workers.close()


def test_closing_ends_every_process_and_every_future(config):
    before = set(threading.enumerate())
    workers = WorkerPredictor(config, 2)
    pids = workers.pids
    os.kill(pids[0], signal.SIGSTOP)
    futures = submit(workers, 40)
    until(lambda: workers.stats().workers[0].is_busy)
    workers.close(timeout_s=0.1)
    workers.close()
    assert all(future.done for future in futures)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert set(threading.enumerate()) == before
    for action in (lambda: submit(workers, 1, seed=4), workers.memory):
        with pytest.raises(EngineDeadError, match="closed"):
            action()


def test_what_loading_raises_there_is_raised_here(tmp_path):
    with pytest.raises(InvalidInputError) as caught:
        WorkerPredictor(PredictorConfig(tmp_path / "nothing.npz"), 2)
    assert caught.value.code == MissingFileError.code or "nothing.npz" in str(caught.value)
    with pytest.raises(InvalidInputError, match="at least 1 worker"):
        WorkerPredictor(PredictorConfig(tmp_path / "nothing.npz"), 0)


@pytest.mark.parametrize("touches", ["the weights", "a file that no worker reads"])
def test_a_worker_that_would_answer_differently_does_not_start_again(config, tmp_path, monkeypatch, caplog, touches):
    """The files were exchanged under a running predictor, for others of the same shape."""
    monkeypatch.setattr(lane, "_MAX_FAILED_STARTS", 1)
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "mlp.npz"
    path.write_bytes(config.model_path.read_bytes())
    workers = WorkerPredictor(replace(config, model_path=path), 2, pause_s=0.0)
    try:
        expected = outputs(submit(workers, 8, seed=4))
        new = folder / "processing.toml"
        if touches == "the weights":
            new = tmp_path / "new.npz"
            np.savez(new, **{"a.weight": np.ones((6, 4), np.float32), "b.weight": np.eye(6, dtype=np.float32)})
            new.replace(path)
        else:
            new.write_text("")
        os.kill(workers.pids[0], signal.SIGKILL)
        until(lambda: workers.stats().workers[0].restarts or "start the server again" in caplog.text)
        assert (workers.stats().workers[0].restarts == 0) == (touches == "the weights")
        for _ in range(5):
            for found, wanted in zip(outputs(submit(workers, 8, seed=4)), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
    finally:
        workers.close()


def test_when_no_worker_starts_any_more_everybody_is_told(config, tmp_path, monkeypatch):
    monkeypatch.setattr(lane, "_MAX_FAILED_STARTS", 1)
    path = tmp_path / "gone.npz"
    path.write_bytes(config.model_path.read_bytes())
    workers = WorkerPredictor(replace(config, model_path=path), 1, pause_s=0.0)
    try:
        os.kill(workers.pids[0], signal.SIGSTOP)
        path.unlink()
        futures = submit(workers, 6)
        os.kill(workers.pids[0], signal.SIGKILL)
        for future in futures:
            with pytest.raises(EngineDeadError, match=r"does not start: .*gone\.npz"):
                future.result(TIMEOUT_S)
        assert not workers.is_alive
        with pytest.raises(EngineDeadError, match="does not start"):
            submit(workers, 1, seed=1)
    finally:
        workers.close()


def test_a_worker_that_is_stopped_is_stuck_until_it_goes_on(config):
    workers = WorkerPredictor(config, 1, pause_s=0.0)
    try:
        (expected,) = outputs(submit(workers, 1, seed=3))
        assert workers.stats().stuck_s == 0.0 < workers.stats().usual_batch_s
        os.kill(workers.pids[0], signal.SIGSTOP)
        (future,) = submit(workers, 1, seed=3)
        until(lambda: workers.stats().stuck_s > 0.02)
        os.kill(workers.pids[0], signal.SIGCONT)
        np.testing.assert_array_equal(future.result(TIMEOUT_S).outputs["b"], expected)
        assert workers.stats().stuck_s == 0.0
    finally:
        workers.close()
