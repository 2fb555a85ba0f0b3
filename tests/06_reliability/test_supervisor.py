"""A dead engine is replaced after a pause that grows, and a good life earns the short pause back."""

import pytest

from aie_engine import EngineDeadError, EnvironmentLacksError
from aie_reliability import SupervisedEngine


@pytest.fixture
def made(make_engine):
    return []


@pytest.fixture
def supervised(made, make_engine, clock):
    def factory():
        outcome = factory.errors.pop(0) if factory.errors else None
        if outcome is not None:
            raise outcome
        made.append(make_engine())
        return made[-1]

    factory.errors = []
    engine = SupervisedEngine(factory, backoff_s=1.0, max_backoff_s=4.0, clock=clock, watch=False)
    engine.factory = factory
    return engine


def test_restarts_after_the_pause(supervised, made, clock, request_of):
    made[0].is_alive = False
    assert not supervised.check()
    with pytest.raises(EngineDeadError) as refusal:
        supervised.submit(request_of())
    assert refusal.value.retry_after_s == pytest.approx(1.0)
    clock.advance(1.0)
    assert supervised.check()
    assert len(made) == 2 and supervised.is_alive and supervised.num_restarts == 1
    assert made[0].closed == 1
    supervised.submit(request_of())


def test_the_pause_doubles_up_to_a_limit_and_failed_starts_count(supervised, made, clock):
    supervised.factory.errors = [EnvironmentLacksError("no memory")] * 3
    made[0].is_alive = False
    pauses = []
    start = clock.now
    while not supervised.check():
        clock.advance(0.5)
        assert clock.now - start < 60
        if len(supervised.factory.errors) != 3 - len(pauses):
            pauses.append(clock.now - 0.5 - start)
    assert [round(p, 1) for p in pauses] == [1.0, 3.0, 7.0]  # pauses of 1, 2, 4
    assert clock.now - start == pytest.approx(11.0, abs=0.6)  # and 4 again: the limit


def test_no_failure_of_a_start_ends_the_supervision(supervised, made, clock):
    supervised.factory.errors = [RuntimeError("can't start new thread"), EOFError()]
    made[0].is_alive = False
    supervised.check()
    for _ in range(2):
        clock.advance(4.0)
        assert not supervised.check()
    clock.advance(4.0)
    assert supervised.check() and supervised.is_alive


def test_a_long_life_resets_the_pause(supervised, made, clock):
    for _ in range(3):
        made[-1].is_alive = False
        supervised.check()
        clock.advance(4.0)
        assert supervised.check()
    clock.advance(100)
    made[-1].is_alive = False
    supervised.check()
    clock.advance(1.0)
    assert supervised.check()


def test_close_ends_the_engine_and_the_restarts(supervised, made):
    supervised.close()
    assert made[0].closed == 1
    assert not supervised.check()
    assert len(made) == 1


def test_an_engine_that_cannot_start_at_all_is_an_error_of_the_start(clock):
    def factory():
        raise EnvironmentLacksError("no such model")

    with pytest.raises(EnvironmentLacksError):
        SupervisedEngine(factory, clock=clock, watch=False)


def test_watching_thread_ends_with_close(make_engine):
    supervised = SupervisedEngine(make_engine)
    watcher = supervised._watcher
    assert watcher is not None and watcher.is_alive()
    supervised.close()
    assert not watcher.is_alive()
