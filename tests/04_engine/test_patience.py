"""Waiting for a worker's answer: how long, once it has owed one for a while."""

from aie_engine.patience import Patience


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_question_gets_its_whole_time_until_one_goes_without_answer() -> None:
    clock = Clock()
    patience = Patience(1.0, clock)
    assert patience.left(10.0) == 10.0
    clock.now_s = 1000.0
    assert patience.left(10.0) == 10.0, "a worker that nobody asks owes nothing"


def test_what_was_waited_already_is_taken_off_down_to_the_least() -> None:
    clock = Clock()
    patience = Patience(1.0, clock)
    clock.now_s += 1.0
    patience.unanswered(1.0)
    assert patience.left(10.0) == 9.0
    clock.now_s += 5.0
    patience.unanswered(4.0)  # asked later than the first: it is the first that counts
    assert patience.left(10.0) == 4.0
    clock.now_s += 60.0
    assert patience.left(10.0) == patience.left(1.0) == 1.0


def test_a_worker_that_is_heard_owes_nothing() -> None:
    patience = Patience(1.0, Clock())
    patience.unanswered(60.0)
    assert patience.left(10.0) == 1.0
    patience.heard()
    assert patience.left(10.0) == 10.0
