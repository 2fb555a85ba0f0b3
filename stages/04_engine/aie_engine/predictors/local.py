"""The predictor in a thread of this process. Kernels run without Python's lock, so others get on meanwhile."""

import threading
from collections.abc import Callable, Mapping

from aie_engine.build import Report
from aie_engine.predictors.batching import make_batcher, make_front
from aie_engine.predictors.build import PredictorParts, build_predictor
from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.lanes_here import DirectLane, StreamedLane, Streams
from aie_engine.predictors.protocol import PredictorInfo, PredictorStats
from aie_engine.predictors.requests import BatchFacts, PredictFuture, PredictRequest

__all__ = ["LocalPredictor"]

_CLOSED = "The predictor was closed."


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
        self._front = make_front(config, self._parts.info)
        runners = self._parts.runners
        self._streams = Streams() if len(runners) > 1 else None
        if self._streams is None:
            self._front.set_lanes([DirectLane(self._front, runners[0])])
        else:
            streams = self._streams
            self._front.set_lanes([StreamedLane(i, self._front, runner, streams) for i, runner in enumerate(runners)])
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

    def watch(self, on_batch: Callable[[BatchFacts], None] | None) -> None:
        self._front.on_batch = on_batch

    def drain(self) -> None:
        self._front.drain()

    def close(self, timeout_s: float = 10.0) -> None:
        """Raises `TimeoutError` if the batch that runs does not end in time; memory is then not given back."""
        with self._close_lock:
            if self._is_closed:
                return
            self._front.end(_CLOSED)
            self._thread.join(timeout_s)
            if self._thread.is_alive() or not self._front.wait_idle(timeout_s):
                raise TimeoutError(f"the predictor's batch did not end within {timeout_s} s")
            if self._streams is not None:
                self._streams.close()
            self._parts.close()
            self._is_closed = True


def _say_nothing(line: str) -> None:
    pass
