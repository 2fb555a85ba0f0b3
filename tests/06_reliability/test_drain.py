"""First signal drains, second leaves; the grace time bounds the wait."""

import signal

from aie_reliability import Drain


def make(clock, in_flight, grace_s=10.0):
    log = []
    drain = Drain(
        lambda: log.append("begin"),
        in_flight,
        grace_s=grace_s,
        clock=clock,
        pause=clock.advance,
        exit_now=log.append,
    )
    return drain, log


def test_waits_until_the_last_request_has_ended(clock):
    left = iter([3, 2, 1, 0, 0])
    drain, log = make(clock, lambda: next(left))
    drain.on_signal(signal.SIGTERM)
    drain.wait()
    assert drain.run() == 0
    assert log == ["begin"]


def test_gives_up_after_the_grace_time(clock):
    drain, _ = make(clock, lambda: 2)
    start = clock.now
    assert drain.run() == 2
    assert 10.0 <= clock.now - start < 10.2


def test_second_signal_leaves_at_once(clock):
    drain, log = make(clock, lambda: 1)
    drain.on_signal(signal.SIGTERM)
    assert log == []
    drain.on_signal(signal.SIGTERM)
    assert log == [128 + signal.SIGTERM]
