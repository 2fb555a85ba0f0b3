"""Staging of the next batch while the present one is computed: two streams, a few buffers, two events per batch.

    copy      stage 0 │ stage 1        │ stage 2 …
    compute           │ compute 0      │ compute 1 …

Of each buffer two things must be known before it is touched: that it is filled (an event on `copy`, for `compute`), and
that it is read (an event on `compute`, for `copy`). Forget the second, and the batch under way is overwritten.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from aie_engine.device_streams.checker import StreamBuffer
from aie_engine.device_streams.stream import CpuEvent, CpuStream, synchronize_all
from aie_tensor import InvalidInputError

__all__ = ["StagedPipeline"]

Source = TypeVar("Source")
Result = TypeVar("Result")


class StagedPipeline(Generic[Source, Result]):
    """`stage(source, buffer)` on `copy`, then `run(buffer)` on `compute`.

    buffers: as many batches may be between the two streams; with one, nothing can overlap. The same stream given twice
    does one after the other.
    """

    def __init__(
        self,
        stage: Callable[[Source, StreamBuffer], object],
        run: Callable[[StreamBuffer], Result],
        *,
        copy: CpuStream,
        compute: CpuStream,
        buffers: Sequence[StreamBuffer],
    ) -> None:
        if not buffers:
            raise InvalidInputError("there must be at least one buffer to stage in", param="buffers")
        self._stage = stage
        self._run = run
        self._copy = copy
        self._compute = compute
        self._buffers = buffers

    def map(self, sources: Iterable[Source]) -> list[Result]:
        """The result of each source, in order. Raises what the work raised, after both streams are done."""
        results: dict[int, Result] = {}
        free: list[CpuEvent | None] = [None] * len(self._buffers)
        for number, source in enumerate(sources):
            slot = number % len(self._buffers)
            free[slot] = self._queue(number, source, self._buffers[slot], free[slot], results)
        synchronize_all(dict.fromkeys((self._copy, self._compute)))
        return [results[number] for number in range(len(results))]

    def _queue(
        self, number: int, source: Source, buffer: StreamBuffer, free: CpuEvent | None, results: dict[int, Result]
    ) -> CpuEvent:
        if free is not None:
            self._copy.wait_event(free)
        self._copy.submit(lambda: self._stage(source, buffer), label=f"stage {number}", writes=[buffer])
        self._compute.wait_event(self._copy.record())
        self._compute.submit(lambda: results.update({number: self._run(buffer)}), label=f"run {number}", reads=[buffer])
        return self._compute.record()
