"""First signal drains, second leaves; the grace time bounds the wait."""

import signal
import sys
import threading

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
    left = iter([3, 2, 1, 0, 0, 0])
    drain, log = make(clock, lambda: next(left))
    drain.on_signal(signal.SIGTERM)
    drain.wait()
    assert drain.run() == 0
    assert log == ["begin"]


def test_a_request_that_was_on_its_way_is_waited_for(clock):
    left = iter([0, 1, 1, 0, 0, 0])
    drain, _ = make(clock, lambda: next(left))
    assert drain.run() == 0
    assert next(left, None) is None


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


def test_a_signal_may_interrupt_the_wait_at_any_line(clock):
    """The handler runs in the thread that waits, between any two of its steps: a lock that both take would be for
    ever."""
    drain, _ = make(clock, lambda: 0)

    def interrupt(_frame, _event, _argument):
        drain.on_signal(signal.SIGTERM)
        return interrupt

    def wait():
        sys.settrace(interrupt)
        drain.wait()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(5)
    assert not waiter.is_alive()
