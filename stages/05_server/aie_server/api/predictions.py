"""One request to a predictor: admission, preparation, batching with others, waiting, measurement.

    with PredictionRun(context, model, request) as run:
        with run.pre():                     in this thread, so a slow image costs its sender alone
            items = …
        outputs = run.compute(items)        each item joins the batcher by itself, among those of other requests
        with run.post():
            body = …
        return run.respond(body)

Whatever happens, what still waits when the context ends is cancelled: a client that hung up is not computed for.
"""

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aie_engine import AieError, EngineDeadError, PredictFuture, Prediction, PredictRequest, QueueFullError
from aie_engine.processing import Item
from aie_server.config import ServerConfig
from aie_server.errors import DeadlineExceededError
from aie_server.gate import AdmitRequest, Gate
from aie_server.http.messages import ClientGoneError, Request, Response, json_response
from aie_server.prediction_metrics import PredictionMetrics
from aie_server.predictors import PredictorTable, ServedPredictor
from aie_server.request_book import RequestBook

__all__ = ["Outputs", "PredictionContext", "PredictionRun"]

Outputs = list[Mapping[str, Any]]  # for each item, its arrays by name

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class PredictionContext:
    """What all requests to predictors share."""

    gate: Gate
    config: ServerConfig
    metrics: PredictionMetrics
    predictors: PredictorTable
    requests: RequestBook


class PredictionRun:
    """Entering passes the gate; raises what that raises. timeout_s: the client's own, where it has less patience than
    the gate. priority: lower runs first."""

    def __init__(
        self,
        context: PredictionContext,
        model: ServedPredictor,
        request: Request,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> None:
        self._context = context
        self._model = model
        self._request = request
        self._priority = priority
        self._trace = context.requests.open(request, model.name, is_prediction=True)
        self._place: AbstractContextManager[object] | None = None
        self._pending: deque[PredictFuture] = deque()
        self._started_s = self._alive_s = time.monotonic()
        budgets = [budget for budget in (context.gate.default_deadline_s, timeout_s) if budget is not None]
        self._budget_s = min(budgets, default=None)
        self._deadline_s = None if self._budget_s is None else self._started_s + self._budget_s
        self._seconds = {"pre": 0.0, "queue": 0.0, "compute": 0.0, "post": 0.0}

    def __enter__(self) -> "PredictionRun":
        asked = AdmitRequest(self._request.client_key, self._request.head.path, is_prediction=True)
        place = self._context.gate.admit(asked)
        place.__enter__()
        self._place = place
        self._trace.admitted_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            for future in self._pending:
                future.cancel()
            metrics = self._context.metrics.of_model(self._model.name)
            metrics.outcomes[_outcome(error)].inc()
            if error is None:
                for phase, histogram in metrics.phases.items():
                    histogram.observe(self._seconds[phase])
        finally:
            assert self._place is not None, "it was entered"
            self._place.__exit__(kind, error, tb)

    def pre(self) -> AbstractContextManager[object]:
        """What is done before the model, measured."""
        return _Phase(self._seconds, "pre")

    def post(self) -> AbstractContextManager[object]:
        """What is done after it, measured."""
        return _Phase(self._seconds, "post")

    def compute(self, items: Sequence[Item]) -> Outputs:
        """The outputs of all items, in their order. Raises the predictor's errors, `ClientGoneError`,
        `DeadlineExceededError`."""
        self._trace.submitted_s = time.monotonic()
        # One request may have more items than may wait; it leaves at least half of the queue to others. Nor do more of
        # them wait than keep all workers busy: whoever comes next, perhaps with a single text, stands behind these.
        info = self._model.predictor.info
        window = max(1, min(info.max_queue // 2, 2 * info.num_workers * info.max_batch_size))
        outputs: Outputs = []
        num_sent = 0
        while len(outputs) < len(items):
            while num_sent < len(items) and len(self._pending) < window:
                try:
                    self._pending.append(self._submit(items[num_sent]))
                except QueueFullError:
                    if not self._pending:
                        raise
                    break
                num_sent += 1
            outputs.append(self._wait(self._pending[0]).outputs)
            self._pending.popleft()
        self._trace.computed_s = time.monotonic()
        self._trace.num_inputs = len(items)
        metrics = self._context.metrics.of_model(self._model.name)
        metrics.inputs.inc(len(items))
        if self._model.pipeline.reads in ("text", "tokens"):
            self._trace.prompt_tokens = sum(item.length for item in items)
            metrics.tokens.inc(self._trace.prompt_tokens)
        return outputs

    @property
    def headers(self) -> dict[str, str]:
        """`Server-Timing`, in milliseconds: where the time of this request went."""
        return {"Server-Timing": ", ".join(f"{name};dur={s * 1e3:.3f}" for name, s in self._seconds.items())}

    def respond(self, body: object) -> Response:
        """`body` as JSON, with the times; encoding it is part of `post`."""
        with self.post():
            response = json_response(body)
        response.headers = self.headers
        return response

    def _submit(self, item: Item) -> PredictFuture:
        request_id = f"{self._request.request_id}-{next(_serial)}"  # a client may send the same X-Request-Id twice
        return self._model.predictor.submit(
            PredictRequest(
                request_id,
                item.inputs,
                item.length,
                priority=self._priority,
                deadline_s=self._deadline_s,
                client=self._request.client_key,
            )
        )

    def _wait(self, future: PredictFuture) -> Prediction:
        while True:
            try:
                prediction = future.result(self._context.config.disconnect_poll_s)
            except TimeoutError:
                self._look_around()
                continue
            facts, seconds = prediction.batch, self._seconds
            seconds["queue"] = max(seconds["queue"], facts.waited_s)
            seconds["compute"] = max(seconds["compute"], facts.compute_s)
            longest = self._trace.batch
            if longest is None or facts.waited_s + facts.compute_s > longest.waited_s + longest.compute_s:
                self._trace.batch = facts
            return prediction

    def _look_around(self) -> None:
        """Nothing came for a while: is there still somebody to wait for, and something to wait for?"""
        if self._request.client_gone():
            raise ClientGoneError
        now_s, config = time.monotonic(), self._context.config
        if self._model.predictor.is_alive:
            self._alive_s = now_s
        elif now_s > self._alive_s + config.dead_engine_grace_s:
            raise EngineDeadError(f"The predictor of {self._model.name!r} stopped.")
        if self._deadline_s is not None and now_s > self._deadline_s + config.deadline_grace_s:
            raise DeadlineExceededError(f"The request was not done within {self._budget_s:g} s.")


class _Phase:
    """Adds the time within the context to one entry; also where it ends by an error."""

    __slots__ = ("_began_s", "_name", "_seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] += time.monotonic() - self._began_s


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    if isinstance(error, ClientGoneError):
        return "cancelled"
    return "refused" if isinstance(error, AieError) and error.status < 500 else "failed"
