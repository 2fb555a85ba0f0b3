"""The breaker wrapped around an engine: every request asks leave first and reports how it went.

What counts: the first token is a success, since an engine that computes is well; an error event with a status of 500 or
more is a failure. What does not: bad input, a full queue, a client that went away, a deadline that passed: they say
something about the load or the caller. Nor does the death of the engine, which is the supervisor's business: all
requests in flight die with a worker, and a breaker that counted them would stay open after the next one is ready.
"""

from types import TracebackType

from aie_engine import (
    AieError,
    ConstraintsBusyError,
    EngineClient,
    EngineDeadError,
    GenerateRequest,
    QueueFullError,
    TokenEvent,
    TokenStream,
)
from aie_reliability.breaker import BreakerState, CircuitBreaker, Permit
from aie_reliability.wrapped import WrappedEngine

__all__ = ["GuardedEngine"]

_NOT_FAULTS = (QueueFullError, EngineDeadError)
_NOT_FAULT_CODES = {EngineDeadError.code, ConstraintsBusyError.code}


class GuardedEngine(WrappedEngine):
    """Like the engine inside, but fails fast with `CircuitOpenError` while the breaker is open.

    `is_alive` is of the engine alone: what it is computing goes on while the breaker keeps new requests away.
    """

    def __init__(self, engine: EngineClient, breaker: CircuitBreaker) -> None:
        super().__init__(engine)
        self.breaker = breaker

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
        if event.error is not None and event.error.status >= 500 and event.error.code not in _NOT_FAULT_CODES:
            self._permit.failure()
        elif event.token_ids:
            self._permit.success()
        elif self.finished:
            self._permit.abandon()
        return event

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._permit.abandon()
        super().__exit__(kind, error, tb)
