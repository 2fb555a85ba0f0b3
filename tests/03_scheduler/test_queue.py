"""The waiting room and the estimate that it gives to those who are turned away."""

import pytest

from aie_scheduler import BoundedQueue, QueueFullError, Request, SequenceState, SequenceStatus
from aie_scheduler.deadlines import DeadlineHeap
from aie_scheduler.queue import DrainRate


def state(name: str, order: int = 0, priority: int = 0, deadline_s: float | None = None) -> SequenceState:
    request = Request(request_id=name, prompt_len=1, max_tokens=1, priority=priority, deadline_s=deadline_s)
    return SequenceState.of(request, order)


def test_order_is_priority_then_arrival() -> None:
    queue = BoundedQueue(8)
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 0), ("e", 5)):
        queue.push(state(name, priority=priority))
    assert [member.request_id for member in queue] == ["c", "a", "d", "b", "e"]
    head = queue.head()
    assert head is not None and head.request_id == "c"


def test_leaving_from_the_middle_and_coming_back_to_the_front() -> None:
    queue = BoundedQueue(8)
    a, b, c = (state(name) for name in "abc")
    for member in (a, b, c):
        queue.push(member)
    queue.remove(b)
    queue.push_front(b)
    assert [member.request_id for member in queue] == ["b", "a", "c"]
    for member in (a, b, c):
        queue.remove(member)
    assert len(queue) == 0
    assert queue.head() is None


def test_full_queue_says_when_to_come_back() -> None:
    queue = BoundedQueue(1)
    queue.check_room(7.0)
    queue.push(state("a"))
    with pytest.raises(QueueFullError, match="queue holds 1; try again in 7 s") as caught:
        queue.check_room(7.0)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 7.0)
    queue.push_front(state("preempted"))  # never refused
    assert len(queue) == 2


def test_retry_after_follows_the_rate_at_which_requests_end() -> None:
    rate = DrainRate()
    assert rate.retry_after_s(100) == 1.0  # nothing known yet
    rate.tick(10.0)
    rate.count(20)
    rate.tick(12.0)  # 10 per second
    assert rate.retry_after_s(100) == pytest.approx(10.0)
    assert rate.retry_after_s(1) == 1.0
    assert rate.retry_after_s(100_000) == 60.0


def test_idle_time_does_not_count_as_slowness() -> None:
    rate = DrainRate()
    rate.tick(0.0)
    rate.count(10)
    rate.tick(1.0)  # 10 per second
    rate.count(1)
    rate.restart()  # an hour later
    rate.tick(3600.0)
    rate.count(10)
    rate.tick(3601.0)
    assert rate.retry_after_s(100) == pytest.approx(10.0)


def test_deadlines_come_due_in_order_and_dead_entries_do_not_pile_up() -> None:
    heap = DeadlineHeap[SequenceState](lambda state: state.status is SequenceStatus.FINISHED)
    for order in range(1000):
        member = state(f"r{order}", order, deadline_s=100.0 + order)
        heap.add(member)
        if order < 990:
            member.status = SequenceStatus.FINISHED
            heap.forget(member)
    assert len(heap) < 150
    assert heap.nearest() == 1090.0
    assert [member.request_id for member in heap.due(1091.0)] == ["r990", "r991"]
    assert heap.due(1091.0) == []
