"""A batch of items through the executor: gathered into one array per input, run once, cut apart again.

Whatever is wrong with one item must not hurt the others: when a run fails, its halves run again, and so on down to the
item that fails alone. A batch of n with one bad item costs at most 2·log2(n) runs more.

Results do not depend on the company. The native kernels promise that; of NumPy's matrix products the order of additions
may depend on the number of rows, so there every item runs by itself.
"""

import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aie_engine.errors import NotFiniteError, PredictionFailedError
from aie_engine.predictors.requests import Array
from aie_engine.predictors.signature import Signature
from aie_tensor import AieError, Allocation, MemoryPool

__all__ = ["BatchResult", "BatchRunner", "GraphExecutor", "Item", "Staged"]

Item = Mapping[str, Array]

_log = logging.getLogger("aie.engine")


class GraphExecutor(Protocol):
    """Both executors of graphs without a cache."""

    def run(self, inputs: Mapping[str, Any], seq_starts: npt.ArrayLike | None = None) -> dict[str, Any]: ...


@dataclass(slots=True)
class BatchResult:
    """One entry per item: its outputs by name, or what went wrong with it."""

    items: list[dict[str, Array] | AieError]
    pre_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch's inputs, gathered."""

    inputs: dict[str, Array]
    starts: npt.NDArray[np.int32] | None  # [S + 1], of texts
    seconds: float  # that it took


class BatchRunner:
    """For one thread. Its staging buffers are the pool's, under an owner for each input.

    one_by_one: the executor's results depend on the company, so nobody gets any.
    """

    def __init__(
        self,
        signature: Signature,
        executor: GraphExecutor,
        pool: MemoryPool,
        *,
        max_batch_size: int,
        max_batch_tokens: int,
        one_by_one: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._signature = signature
        self._executor = executor
        self._most = 1 if one_by_one or signature.kind == "single" else max_batch_size
        self._clock = clock
        self._allocations: list[Allocation] = []
        self._staged: dict[str, Array] = {}
        names = [array.name for array in signature.inputs]
        try:
            if signature.kind == "texts":
                for name in (*names, "positions"):
                    self._staged[name] = self._buffer(pool, name, np.int32, (max_batch_tokens,))
            elif signature.kind == "rows":
                for array in signature.inputs:
                    if -1 not in array.shape:
                        shape = (self._most, *array.shape)
                        self._staged[array.name] = self._buffer(pool, array.name, np.float32, shape)
        except BaseException:
            self.close()
            raise

    def run(self, items: Sequence[Item], staged: Staged | None = None) -> BatchResult:
        """Items as `checked_item` leaves them; staged: what `stage` made of them. Never raises for an item's sake."""
        result = BatchResult([PredictionFailedError("not computed")] * len(items))
        for begin in range(0, len(items), self._most):
            self._run(items, begin, min(begin + self._most, len(items)), result, staged)
        return result

    def stage(self, items: Sequence[Item]) -> Staged | None:
        """Gather a batch ahead of its run, while the executor has another one; no run of this runner may come between.
        None for a batch that cannot be run in one."""
        if len(items) > self._most:
            return None
        try:
            return self._gather(items)
        except Exception:  # the run finds out which item it is
            return None

    def close(self) -> None:
        """Give the staging buffers back."""
        self._staged.clear()
        while self._allocations:
            self._allocations.pop().release()

    def _buffer(self, pool: MemoryPool, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
        nbytes = max(prod(shape) * np.dtype(dtype).itemsize, 1)
        self._allocations.append(pool.allocate_exact(nbytes, owner=f"staging: {name}"))
        return self._allocations[-1].array(dtype, shape)

    def _run(
        self, items: Sequence[Item], begin: int, end: int, result: BatchResult, staged: Staged | None = None
    ) -> None:
        try:
            result.items[begin:end] = self._attempt(items[begin:end], result, staged)
            return
        except Exception as error:
            if end - begin == 1:
                result.items[begin] = _bare(error)
                return
        middle = (begin + end) // 2
        self._run(items, begin, middle, result)
        self._run(items, middle, end, result)

    def _attempt(
        self, items: Sequence[Item], result: BatchResult, staged: Staged | None
    ) -> list[dict[str, Array] | AieError]:
        staged = staged or self._gather(items)
        result.pre_s += staged.seconds
        began = self._clock()
        try:
            outputs = self._executor.run(staged.inputs, staged.starts)
        finally:
            result.compute_s += self._clock() - began
        return [self._item(outputs, index, staged.starts) for index in range(len(items))]

    def _gather(self, items: Sequence[Item]) -> Staged:
        began = self._clock()
        starts = None
        if self._signature.kind == "texts":
            starts = np.cumsum([0, *(len(item["token_ids"]) for item in items)], dtype=np.int32)
            inputs = self._packed(items, starts)
        elif self._signature.kind == "rows":
            inputs = self._stacked(items)
        else:
            inputs = self._one(items[0])
        return Staged(inputs, starts, self._clock() - began)

    def _packed(self, items: Sequence[Item], starts: npt.NDArray[np.int32]) -> dict[str, Array]:
        total = int(starts[-1])
        inputs = {name: array[:total] for name, array in self._staged.items()}
        for item, begin, end in zip(items, starts[:-1], starts[1:], strict=True):
            inputs["positions"][begin:end] = np.arange(end - begin, dtype=np.int32)
            for array in self._signature.inputs:
                inputs[array.name][begin:end] = item.get(array.name, 0)
        return inputs

    def _stacked(self, items: Sequence[Item]) -> dict[str, Array]:
        inputs: dict[str, Array] = {}
        for array in self._signature.inputs:
            staged = self._staged.get(array.name)
            if staged is None:  # an axis that differs from item to item: those that agree may share a run
                inputs[array.name] = np.stack([item[array.name] for item in items])
                continue
            inputs[array.name] = staged[: len(items)]
            for index, item in enumerate(items):
                staged[index] = item[array.name]
        return inputs

    def _one(self, item: Item) -> dict[str, Array]:
        axes = self._signature.axes
        return {name: array[np.newaxis] if axes[name] == "B" else array for name, array in item.items()}

    def _item(
        self, outputs: Mapping[str, Any], index: int, starts: npt.NDArray[np.int32] | None
    ) -> dict[str, Array] | AieError:
        """The part of one item, copied, so that keeping it does not keep the whole batch."""
        own: dict[str, Array] = {}
        for name, array in outputs.items():
            axis = self._signature.axes[name]
            if axis == "T" and starts is not None:
                array = array[starts[index] : starts[index + 1]]  # noqa: PLW2901 (what is the item's of it)
            elif axis:
                array = array[index]  # noqa: PLW2901
            own[name] = np.array(array)
            if own[name].dtype.kind == "f" and not np.isfinite(own[name]).all():
                what = "NaN" if np.isnan(own[name]).any() else "infinity"
                return NotFiniteError(
                    f"the values of this input are too large for the model: {name}, which it computes of them, holds "
                    f"{what}; scale them as for its training"
                )
        return own


def _bare(error: Exception) -> AieError:
    """To be kept by who asked, so without its traceback, whose frames hold the staging buffers."""
    if not isinstance(error, AieError):
        _log.error("a prediction failed:\n%s", "".join(traceback.format_exception(error)))
        return PredictionFailedError(f"the model failed: {type(error).__name__}: {error}")
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
