"""The lanes of a predictor in this process: one that computes in the front's thread, or two that take turns on streams.

    copy       stage 0 │ stage 1          │ stage 2
    compute            │ run 0            │ run 1
    results                               │ give out 0

With two, the executor never waits for Python: while it computes one batch, the next is gathered into the other lane's
buffers and the results of the one before are given out. The price is that a batch is cut before its run can begin.
"""

import logging
from dataclasses import dataclass

from aie_engine.device_streams import CpuStream
from aie_engine.errors import PredictionFailedError
from aie_engine.predictors.books import Batch
from aie_engine.predictors.front import BatchFront
from aie_engine.predictors.runner import BatchResult, BatchRunner, Staged

__all__ = ["DirectLane", "StreamedLane", "Streams"]

_log = logging.getLogger("aie.engine")


class DirectLane:
    """Computes in the front's own thread."""

    index = 0

    def __init__(self, front: BatchFront, runner: BatchRunner) -> None:
        self._front = front
        self._runner = runner

    def start(self, batch: Batch) -> None:
        self._front.finish(self, batch, _run(self._runner, batch))


class Streams:
    """The three that the lanes share."""

    def __init__(self) -> None:
        self.copy, self.compute, self.results = (CpuStream(name) for name in ("copy", "compute", "results"))

    def close(self) -> None:
        """After what is queued."""
        for stream in (self.copy, self.compute, self.results):
            stream.close()


@dataclass(slots=True)
class _Work:
    """What goes from stream to stream."""

    batch: Batch
    staged: Staged | None = None
    result: BatchResult | None = None


class StreamedLane:
    """Returns from `start` at once. It gets no other batch before this one is finished, so no buffer is overwritten."""

    def __init__(self, index: int, front: BatchFront, runner: BatchRunner, streams: Streams) -> None:
        self.index = index
        self._front = front
        self._runner = runner
        self._streams = streams

    def start(self, batch: Batch) -> None:
        work, streams = _Work(batch), self._streams
        streams.copy.submit(lambda: self._stage(work), label="stage")
        streams.compute.wait_event(streams.copy.record())
        streams.compute.submit(lambda: self._compute(work), label="run")
        streams.results.wait_event(streams.compute.record())
        streams.results.submit(lambda: self._give_out(work), label="give out")

    def _stage(self, work: _Work) -> None:
        work.staged = self._runner.stage([member.item for member in work.batch.members])

    def _compute(self, work: _Work) -> None:
        work.result = _run(self._runner, work.batch, work.staged)

    def _give_out(self, work: _Work) -> None:
        assert work.result is not None, "it waited for the event behind the run"
        self._front.finish(self, work.batch, work.result)


def _run(runner: BatchRunner, batch: Batch, staged: Staged | None = None) -> BatchResult:
    """A bug of the runner's must cost this batch, not all that come after."""
    try:
        return runner.run([member.item for member in batch.members], staged)
    except Exception as error:
        _log.exception("a batch failed")
        failure = PredictionFailedError(f"the batch failed: {type(error).__name__}: {error}")
        return BatchResult([failure] * len(batch.members))
