"""What goes into a predictor and what comes out: arrays by name, and a future that resolves exactly once."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from aie_tensor import AieError

__all__ = ["Array", "BatchFacts", "PredictFuture", "PredictRequest", "Prediction"]

Array = npt.NDArray[Any]

_log = logging.getLogger("aie.engine")


@dataclass(frozen=True, slots=True, eq=False)
class PredictRequest:
    """One item. Its arrays must not change until the future has resolved: they are not copied."""

    request_id: str  # unique among the open requests of a predictor
    inputs: Mapping[str, Array]  # without the batch axis; of a text token_ids [T], and where it is a pair token_types
    length: int = 0  # tokens of a text, 1 for all else; 0: as the inputs say
    priority: int = 0  # lower runs first
    deadline_s: float | None = None  # absolute, on the clock of `time.monotonic`
    client: str = ""  # who asks, for fair shares


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is worth knowing of the batch in which a request was computed."""

    size: int  # requests in it
    reason: str  # why it was cut when it was: full, waited, …; alone where nobody may join
    waited_s: float  # by this request, from submit to the cut
    compute_s: float  # in the executor, for the whole batch
    pre_s: float  # gathering the batch's inputs into one array for each
    padding_share: float  # of a rectangle that padding would have been, 0 to 1; packed execution computes none of it
    worker: int  # which worker computed it; 0 in a predictor without processes


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The outputs of one item, without the batch axis, and how they came about."""

    outputs: Mapping[str, Array]
    batch: BatchFacts


@dataclass(eq=False, slots=True)
class PredictFuture:
    """The result of one request, to come. Thread-safe."""

    request_id: str
    _cancel: Callable[["PredictFuture"], bool]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _outcome: Prediction | AieError | None = None
    _latch: "threading.Lock | None" = None  # made by the first who waits; held until there is an outcome
    _callbacks: list[Callable[["PredictFuture"], object]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether there is a value or an error."""
        return self._outcome is not None

    def result(self, timeout_s: float | None = None) -> Prediction:
        """Waits for the prediction. Raises the error that took its place, and `TimeoutError` after `timeout_s`."""
        outcome = self._outcome
        if outcome is None:
            self._wait(timeout_s)
            outcome = self._outcome
        assert outcome is not None, "only resolve wakes those who wait"
        if isinstance(outcome, AieError):
            raise outcome
        return outcome

    def error(self) -> AieError | None:
        """The error that took the prediction's place; None for a prediction, and while nothing is there."""
        outcome = self._outcome
        return outcome if isinstance(outcome, AieError) else None

    def cancel(self) -> bool:
        """No longer wanted: not computed if its batch has not begun, and `result` raises `RequestCancelledError`.

        False where it had resolved already.
        """
        return self._cancel(self)

    def add_done_callback(self, callback: Callable[["PredictFuture"], object]) -> None:
        """Called once with this future, by the thread that resolves it, or at once if that has happened. It must be
        quick: the predictor waits for it. What it raises is logged."""
        with self._lock:
            if self._outcome is None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def resolve(self, outcome: Prediction | AieError) -> bool:
        """For the predictor only: the first call counts and returns True."""
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome = outcome
            callbacks, self._callbacks = self._callbacks, []
            if self._latch is not None:
                self._latch.release()
        for callback in callbacks:
            self._call(callback)
        return True

    def _wait(self, timeout_s: float | None) -> None:
        """A bare lock is the cheapest thing that a thread can sleep on: every request of the server does, once."""
        with self._lock:
            if self._outcome is not None:
                return
            if self._latch is None:
                self._latch = threading.Lock()
                self._latch.acquire()
            latch = self._latch
        if not latch.acquire(timeout=-1 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)):
            raise TimeoutError(f"the prediction {self.request_id} was not there within {timeout_s} s")
        latch.release()  # for the next who waits

    def _call(self, callback: Callable[["PredictFuture"], object]) -> None:
        try:
            callback(self)
        except Exception:
            _log.exception("a callback of the prediction %s failed", self.request_id)
