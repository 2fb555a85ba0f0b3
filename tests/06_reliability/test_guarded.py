"""Only faults of the engine move the breaker."""

import pytest

from aie_engine import EngineDeadError, ErrorInfo, InvalidInputError, QueueFullError, TokenEvent
from aie_reliability import BreakerState, CircuitBreaker, CircuitOpenError, GuardedEngine, SupervisedEngine

FAULT = TokenEvent("r", finish_reason="error", error=ErrorInfo("engine_fault", "a kernel raised", 500))
TOKEN = TokenEvent("r", (5,))
DONE = TokenEvent("r", (6,), finish_reason="length")


@pytest.fixture
def guarded(engine, clock):
    return GuardedEngine(engine, CircuitBreaker(threshold=2, recovery_s=30, clock=clock))


def run(guarded, request_of):
    return list(guarded.submit(request_of()))


def test_error_events_open_the_circuit_and_submit_fails_fast(guarded, engine, request_of):
    engine.events = [FAULT]
    for _ in range(2):
        assert run(guarded, request_of)[-1].finish_reason == "error"
    assert not guarded.takes_requests
    assert guarded.is_alive  # what it is computing goes on
    with pytest.raises(CircuitOpenError):
        guarded.submit(request_of())


def test_after_recovery_one_good_answer_closes_it(guarded, engine, clock, request_of):
    engine.events = [FAULT]
    run(guarded, request_of), run(guarded, request_of)
    clock.advance(30)
    assert guarded.takes_requests  # else readiness would keep the probe away
    engine.events = [TOKEN, DONE]
    run(guarded, request_of)
    assert guarded.breaker.state is BreakerState.CLOSED


def test_an_engine_that_raises_what_it_should_not_counts(guarded, engine, request_of):
    engine.submit_error = KeyError("a bug")
    for _ in range(2):
        with pytest.raises(KeyError):
            guarded.submit(request_of())
    assert guarded.breaker.state is BreakerState.OPEN


@pytest.mark.parametrize(
    "event",
    [
        TokenEvent("r", finish_reason="cancelled"),
        TokenEvent("r", finish_reason="deadline"),
        TokenEvent("r", finish_reason="error", error=ErrorInfo("bad", "bad input", 400)),
        TokenEvent("r", finish_reason="error", error=ErrorInfo("engine_died", "the worker was killed", 503)),
        TokenEvent("r", finish_reason="error", error=ErrorInfo("constraints_busy", "others compile for long", 503)),
    ],
)
def test_what_the_caller_did_does_not_count(guarded, engine, request_of, event):
    engine.events = [event]
    for _ in range(5):
        run(guarded, request_of)
    assert guarded.breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("error", [InvalidInputError("empty prompt"), EngineDeadError("being restarted"), "full"])
def test_refusals_do_not_count(guarded, engine, request_of, error):
    engine.submit_error = QueueFullError("the queue is full", retry_after_s=1.0) if error == "full" else error
    for _ in range(5):
        with pytest.raises(type(engine.submit_error)):
            guarded.submit(request_of())
    assert guarded.breaker.state is BreakerState.CLOSED


def test_leaving_the_stream_early_cancels_and_frees_the_probe(guarded, engine, clock, request_of):
    engine.events = [FAULT]
    run(guarded, request_of), run(guarded, request_of)
    clock.advance(30)
    engine.events = []
    with guarded.submit(request_of("probe")):
        pass
    assert engine.cancelled == ["probe"]
    engine.events = [TOKEN, DONE]
    run(guarded, request_of)
    assert guarded.breaker.state is BreakerState.CLOSED


def test_memory_is_the_engines_own_through_every_guard(engine):
    supervised = SupervisedEngine(lambda: engine, watch=False)
    guarded = GuardedEngine(supervised, CircuitBreaker(1, 1.0))
    assert guarded.memory() == engine.memory()
