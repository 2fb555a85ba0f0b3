"""N worker processes as one predictor. The batcher stays in front, in this process: it alone sees all requests.

Each worker has a model of its own. The pages of the mapped file are shared by all, and so is what the first worker
packs for its kernels (`PredictorConfig.share_weights`). CPU threads are divided: the native kernels of each worker get
their share.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from aie_engine.build import Report
from aie_engine.errors import EngineDeadError
from aie_engine.executors.shared_weights import SharedMemory, can_share
from aie_engine.predictors.batching import make_batcher, make_front
from aie_engine.predictors.books import Batch
from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.lane import ProcessLane
from aie_engine.predictors.made_of import SameFiles
from aie_engine.predictors.protocol import PredictorInfo, PredictorStats, WorkerStats
from aie_engine.predictors.requests import BatchFacts, PredictFuture, PredictRequest
from aie_engine.predictors.runner import BatchResult
from aie_engine.sizing import available_cores
from aie_tensor import InvalidInputError

__all__ = ["WorkerPredictor"]

_CLOSED = "The predictor was closed."
_MEMORY_TIMEOUT_S = 10.0  # a batch may be long, and a snapshot walks over every block
_IDLE_EXIT_S = 5.0  # for a worker that has nothing to do
_PAUSE_S = 0.1  # before the first restart of a worker

_log = logging.getLogger("aie.engine")


class WorkerPredictor:
    """A `PredictorClient`. The constructor starts all workers and returns when they are ready.

    report: takes lines for a person to read meanwhile. Raises what loading raises in a worker, rebuilt here, and
    `EngineDeadError` for one that dies before it is ready or is not ready within `start_timeout_s`.
    """

    def __init__(
        self,
        config: PredictorConfig,
        num_workers: int = 1,
        report: Report | None = None,
        *,
        start_timeout_s: float = 600.0,
        pause_s: float = _PAUSE_S,
    ) -> None:
        if num_workers < 1:
            raise InvalidInputError(f"there must be at least 1 worker, not {num_workers}", param="num_workers")
        make_batcher(config)  # refuses limits that do not go together, before a model is loaded
        num_threads = max(1, (config.num_threads or available_cores()) // num_workers)
        is_shared = config.share_weights and num_workers > 1 and can_share()
        self._shared = SharedMemory() if is_shared else None
        same_files = SameFiles()
        self._lanes = [
            ProcessLane(
                config,
                i,
                self,
                num_threads=num_threads,
                start_timeout_s=start_timeout_s,
                pause_s=pause_s,
                same_files=same_files,
                shared=self._shared,
            )
            for i in range(num_workers)
        ]
        self._close_lock = threading.Lock()
        self._is_closed = False
        self._gone: set[int] = set()
        self._info = self._start(report)
        self._front = make_front(config, self._info)
        self._front.set_lanes(self._lanes)
        for lane in self._lanes:
            lane.serve()
        self._thread = threading.Thread(target=self._front.run, name="aie-predict-front", daemon=True)
        self._thread.start()
        # A worker ignores SIGTERM, with which multiprocessing would end it at exit, and then wait for it forever.
        atexit.register(self.close)

    @property
    def info(self) -> PredictorInfo:
        return self._info

    @property
    def is_alive(self) -> bool:
        return self._front.is_alive

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers; 0 for one that is being started again."""
        return tuple(lane.pid for lane in self._lanes)

    def submit(self, request: PredictRequest) -> PredictFuture:
        return self._front.submit(request)

    def stats(self) -> PredictorStats:
        return self._front.stats(self._with_process)

    def memory(self) -> Mapping[str, object]:
        """Each worker answers between two batches. Raises `EngineDeadError` for one that does not within 10 s."""
        if self._is_closed:
            raise EngineDeadError(_CLOSED)
        asked = {f"predict-{lane.index}": lane.ask() for lane in self._lanes}
        until_s = time.monotonic() + _MEMORY_TIMEOUT_S
        try:
            return {name: answer.result(max(0.0, until_s - time.monotonic())) for name, answer in asked.items()}
        except TimeoutError:
            raise EngineDeadError(
                f"A worker of the predictor did not say what it holds within {_MEMORY_TIMEOUT_S:g} s."
            ) from None

    def watch(self, on_batch: Callable[[BatchFacts], None] | None) -> None:
        self._front.on_batch = on_batch

    def drain(self) -> None:
        self._front.drain()

    def close(self, timeout_s: float = 10.0) -> None:
        """Workers that do not end within `timeout_s` are killed, and what they were computing fails."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            atexit.unregister(self.close)
            self._front.end(_CLOSED)
            self._thread.join()
            self._front.wait_idle(timeout_s)
            self._stop()

    def is_running(self, lane: ProcessLane, batch: Batch) -> bool:
        """A lane asks."""
        return self._front.is_running(lane, batch)

    def finish(self, lane: ProcessLane, batch: Batch, result: BatchResult) -> None:
        """A lane tells."""
        self._front.finish(lane, batch, result)

    def lose(self, lane: ProcessLane, reason: str) -> None:
        """A lane tells."""
        self._front.lose(lane, reason)

    def revive(self, lane: ProcessLane) -> None:
        """A lane tells."""
        self._front.revive(lane)

    def give_up(self, lane: ProcessLane, reason: str) -> None:
        """A lane tells. Without the last of them nobody is left to compute."""
        self._gone.add(lane.index)
        if len(self._gone) == len(self._lanes):
            self._front.end(reason)

    def _start(self, report: Report | None) -> PredictorInfo:
        try:
            first, *others = self._lanes
            first.launch()
            # Where weights are shared, the first worker packs them before the others look for them.
            ready = [first.await_ready(report)] if self._shared is not None else []
            for lane in others:
                lane.launch()
            infos = ready + [lane.await_ready(report) for lane in self._lanes[len(ready) :]]
        except BaseException:  # Ctrl-C too: the workers ignore it
            for lane in self._lanes:
                lane.kill()
                lane.release()
            self._let_go()
            raise
        return msgspec.structs.replace(infos[0], num_workers=len(self._lanes))

    def _stop(self) -> None:
        for worker in self._front.stats().workers:
            if worker.is_busy:  # still, after the time it was given
                lane = self._lanes[worker.index]
                _log.warning("worker %d of the predictor (pid %d) does not end and is killed", lane.index, lane.pid)
                lane.kill()
        for lane in self._lanes:
            lane.stop()
        for lane in self._lanes:
            if not lane.join(_IDLE_EXIT_S):
                lane.kill()
                lane.join(_IDLE_EXIT_S)
        self._let_go()

    def _let_go(self) -> None:
        """Of the shared weights: no worker will be started any more."""
        if self._shared is not None:
            self._shared.close()

    def _with_process(self, worker: WorkerStats) -> WorkerStats:
        lane = self._lanes[worker.index]
        return msgspec.structs.replace(worker, pid=lane.pid, restarts=lane.num_restarts)
