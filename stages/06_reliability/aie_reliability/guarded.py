"""The breaker wrapped around an engine: every request asks leave first and reports how it went.

What counts: the first token is a success, since an engine that computes is well; an error event with a status of 500 or
more is a failure. What does not: bad input, a full queue, a client that went away, a deadline that passed: they say
something about the load or the caller. Nor does the death of the engine, which is the supervisor's business: all
requests in flight die with a worker, and a breaker that counted them would stay open after the next one is ready.
"""

from collections.abc import Mapping
from types import TracebackType

from aie_engine import (
    AieError,
    EngineClient,
    EngineDeadError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    QueueFullError,
    TokenEvent,
    TokenStream,
)
from aie_reliability.breaker import BreakerState, CircuitBreaker, Permit

__all__ = ["GuardedEngine"]

_NOT_FAULTS = (QueueFullError, EngineDeadError)


class GuardedEngine:
    """An `EngineClient` like the one inside, that fails fast with `CircuitOpenError` while the breaker is open."""

    def __init__(self, engine: EngineClient, breaker: CircuitBreaker) -> None:
        self._engine = engine
        self.breaker = breaker

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def is_alive(self) -> bool:
        """Of the engine alone: what it is computing goes on while the breaker keeps new requests away."""
        return self._engine.is_alive

    @property
    def takes_requests(self) -> bool:
        """False while the breaker is open. Half open counts, or no probe would ever come."""
        return self.breaker.state is not BreakerState.OPEN

    def submit(self, request: GenerateRequest) -> TokenStream:
        permit = self.breaker.acquire()
        try:
            stream = self._engine.submit(request)
        except BaseException as error:
            is_fault = not isinstance(error, AieError) or (error.status >= 500 and not isinstance(error, _NOT_FAULTS))
            (permit.failure if is_fault else permit.abandon)()
            raise
        return _GuardedStream(stream, permit)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def outstanding(self) -> list[Mapping[str, object]]:
        return self._engine.outstanding()

    def close(self, timeout_s: float = 10.0) -> None:
        self._engine.close(timeout_s)


class _GuardedStream(TokenStream):
    """Reports the outcome to the breaker as the reader comes across it."""

    __slots__ = ("_inner", "_permit")

    def __init__(self, inner: TokenStream, permit: Permit) -> None:
        super().__init__(inner.request_id, lambda _request_id: inner.cancel())
        self._inner = inner
        self._permit = permit

    def get(self, timeout_s: float | None = None) -> TokenEvent:
        event = self._inner.get(timeout_s)
        self.finished = self._inner.finished
        if event.error is not None and event.error.status >= 500 and event.error.code != EngineDeadError.code:
            self._permit.failure()
        elif event.token_ids:
            self._permit.success()
        elif self.finished:
            self._permit.abandon()
        return event

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._permit.abandon()
        super().__exit__(kind, error, tb)
