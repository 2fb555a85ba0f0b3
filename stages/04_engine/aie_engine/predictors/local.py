"""The predictor in a thread of this process. Kernels run without Python's lock, so others get on meanwhile."""

import logging
import threading
from collections.abc import Callable, Mapping

from aie_engine.build import Report
from aie_engine.errors import PredictionFailedError
from aie_engine.predictors.batching import make_batcher
from aie_engine.predictors.books import Batch
from aie_engine.predictors.build import PredictorParts, build_predictor
from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.front import BatchFront
from aie_engine.predictors.protocol import PredictorInfo, PredictorStats
from aie_engine.predictors.requests import PredictFuture, PredictRequest
from aie_engine.predictors.runner import BatchResult, BatchRunner

__all__ = ["LocalPredictor"]

_CLOSED = "The predictor was closed."

_log = logging.getLogger("aie.engine")


class LocalPredictor:
    """A `PredictorClient`. The constructor loads the model, in the calling thread, and raises what that raises."""

    def __init__(
        self,
        config: PredictorConfig,
        report: Report | None = None,
        *,
        build: Callable[[PredictorConfig, Report], PredictorParts] = build_predictor,
    ) -> None:
        make_batcher(config)  # refuses limits that do not go together, before a model is loaded
        self._parts = build(config, report or _say_nothing)
        self._front = BatchFront(self._parts.info, make_batcher(config, self._parts.info.max_length))
        self._front.set_lanes([_InThread(self._front, self._parts.runner)])
        self._close_lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._front.run, name="aie-predict", daemon=True)
        self._thread.start()

    @property
    def info(self) -> PredictorInfo:
        return self._parts.info

    @property
    def is_alive(self) -> bool:
        return self._front.is_alive

    def submit(self, request: PredictRequest) -> PredictFuture:
        return self._front.submit(request)

    def stats(self) -> PredictorStats:
        return self._front.stats()

    def memory(self) -> Mapping[str, object]:
        """Of a closed predictor, too: what it left behind."""
        return {"predict": self._parts.memory.snapshot()}

    def close(self, timeout_s: float = 10.0) -> None:
        """Raises `TimeoutError` if the batch that runs does not end in time; memory is then not given back."""
        with self._close_lock:
            if self._is_closed:
                return
            self._front.end(_CLOSED)
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise TimeoutError(f"the predictor's batch did not end within {timeout_s} s")
            self._parts.close()
            self._is_closed = True


class _InThread:
    """The lane that computes in the front's own thread."""

    index = 0

    def __init__(self, front: BatchFront, runner: BatchRunner) -> None:
        self._front = front
        self._runner = runner

    def start(self, batch: Batch) -> None:
        try:
            result = self._runner.run([member.item for member in batch.members])
        except Exception as error:  # a bug of the runner's must cost this batch, not all that come after
            _log.exception("a batch failed")
            failure = PredictionFailedError(f"the batch failed: {type(error).__name__}: {error}")
            result = BatchResult([failure] * len(batch.members))
        self._front.finish(self, batch, result)


def _say_nothing(line: str) -> None:
    pass
