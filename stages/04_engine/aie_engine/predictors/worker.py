"""The worker process of a predictor: one batch after another, read from a pipe and answered on it.

One thread does everything: a worker that computes has nothing to read, and one that reads has nothing to compute. When
the pipe closes the front process is gone, and this one ends with it.
"""

import logging
import random
import signal
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from aie_engine.executors.shared_weights import SharedMemory
from aie_engine.predictors import frames
from aie_engine.predictors.build import PredictorParts, build_predictor
from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.runner import BatchRunner
from aie_engine.processes import set_title
from aie_tensor import AieError

__all__ = ["predict_worker_main"]

_log = logging.getLogger("aie.engine")


def predict_worker_main(
    connection: Connection, config_bytes: bytes, index: int, num_threads: int, shared: SharedMemory | None = None
) -> None:
    """Serve frames on `connection` until told to stop or until the other end closes."""
    # Ctrl-C in a terminal reaches every process of the group. Only the front decides when the work is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    name = f"predict-{index}"
    set_title(f"aie-{name}")
    random.seed(index)
    np.random.seed(index)
    try:
        parts = _build(connection, frames.decode_config(config_bytes), name, num_threads, shared)
        if shared is not None:
            shared.close()  # what is mapped stays
        if parts is not None:
            _serve(connection, parts)
            parts.close()
    except (EOFError, OSError):
        pass  # the front is gone; there is nobody left to tell


def _build(
    connection: Connection, config: PredictorConfig, name: str, num_threads: int, shared: SharedMemory | None
) -> PredictorParts | None:
    def report(line: str) -> None:
        _send(connection, frames.Progress(line))

    try:
        return build_predictor(config, report, worker=name, num_threads=num_threads, shared=shared)
    except AieError as error:
        _send(connection, frames.StartFailed(str(error), error.code, error.status, error.exit_code))
    except Exception as error:
        _log.exception("the predictor could not start")
        message = f"The predictor could not start: {type(error).__name__}: {error}"
        _send(connection, frames.StartFailed(message, AieError.code, AieError.status, AieError.exit_code))
    return None


def _serve(connection: Connection, parts: PredictorParts) -> None:
    _send(connection, frames.Started(parts.info, parts.made_of))
    while True:
        try:
            frame = frames.decode_to_worker(connection.recv_bytes())
        except msgspec.DecodeError:  # from here on nothing that comes can be trusted
            _log.exception("the front process sent what is no frame")
            return
        match frame:
            case frames.Compute(items):
                _send(connection, _computed(parts.runners[0], items))
            case frames.Tell():
                _send(connection, frames.Holding(_snapshot(parts)))
            case _:
                return


def _computed(runner: BatchRunner, items: list[list[frames.ArrayFrame]]) -> frames.Computed:
    result = runner.run([frames.from_frames(item) for item in items])
    failures = {
        place: frames.Failure(str(error), error.code, error.status, error.exit_code)
        for place, error in enumerate(result.items)
        if isinstance(error, AieError)
    }
    outputs = [[] if isinstance(item, AieError) else frames.to_frames(item) for item in result.items]
    return frames.Computed(outputs, failures, result.pre_s, result.compute_s)


def _snapshot(parts: PredictorParts) -> dict[str, object] | None:
    try:
        return parts.memory.snapshot()
    except Exception:  # a question about memory must not end the worker
        _log.exception("the memory snapshot failed")
        return None


def _send(connection: Connection, frame: frames.FromWorker) -> None:
    connection.send_bytes(frames.encode(frame))
