"""The queue between producers and the batching loop: three policies, exact waiting, and no thread left behind."""

from threading import Condition, Lock, Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_scheduler import Block, FrontQueue, Hybrid, QueueClosedError, QueueFullError, Spin
from aie_tensor import InvalidInputError


class World:
    """A clock that only moves when somebody waits, and what happens meanwhile: `at(moment, action)`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float | None] = []
        self.events: list[tuple[float, Any]] = []
        world = self

        class FakeCondition(Condition):
            def wait(self, timeout: float | None = None) -> bool:
                world.waits.append(timeout)
                self.release()
                try:
                    return world.pass_time(None if timeout is None else world.now + timeout)
                finally:
                    self.acquire()

        self.condition = FakeCondition

    def at(self, moment: float, action: Any) -> None:
        self.events.append((moment, action))
        self.events.sort(key=lambda event: event[0])

    def pass_time(self, until: float | None) -> bool:
        if self.events and (until is None or self.events[0][0] <= until):
            self.now, action = self.events.pop(0)
            action()
            return True
        assert until is not None, "waits for ever and nothing will happen"
        self.now = until
        return False

    def pause(self) -> None:
        self.pass_time(self.now + 0.25)

    def queue(self, max_queue: int = 2, **options: Any) -> FrontQueue[Any]:
        return FrontQueue(max_queue, clock=lambda: self.now, condition=self.condition, pause=self.pause, **options)


def test_reject_says_when_to_come_back() -> None:
    queue = World().queue()
    assert queue.put("a") is None
    queue.put("b")
    with pytest.raises(QueueFullError, match="queue holds 2; try again in 1 s") as caught:
        queue.put("c")
    assert caught.value.retry_after_s == 1.0
    assert queue.take(until_s=0.0) == ["a", "b"]
    assert (len(queue), queue.num_refused) == (0, 1)


def test_drop_oldest_hands_back_who_had_to_go() -> None:
    queue = World().queue(overflow="drop-oldest")
    assert [queue.put(item) for item in "abcd"] == [None, None, "a", "b"]
    assert queue.take(until_s=0.0) == ["c", "d"]
    assert queue.num_dropped == 2


def test_blocked_producer_gets_in_when_there_is_room() -> None:
    world = World()
    queue = world.queue(overflow="block", max_block_s=10.0)
    queue.put("a")
    queue.put("b")
    world.at(103.0, lambda: queue.take(until_s=0.0, max_items=1))
    assert queue.put("c") is None
    assert (world.now, world.waits) == (103.0, [10.0])
    assert queue.take(until_s=0.0) == ["b", "c"]


@pytest.mark.parametrize(("deadline_s", "ends"), [(None, 110.0), (104.0, 104.0), (200.0, 110.0)])
def test_blocked_producer_is_refused_at_its_deadline(deadline_s: float | None, ends: float) -> None:
    world = World()
    queue = world.queue(1, overflow="block", max_block_s=10.0)
    queue.put("a")
    with pytest.raises(QueueFullError):
        queue.put("b", deadline_s=deadline_s)
    assert world.now == ends
    assert queue.take(until_s=0.0) == ["a"]


def test_close_wakes_the_blocked_and_gives_back_what_is_left() -> None:
    world = World()
    queue = world.queue(1, overflow="block")
    queue.put("a")
    left: list[str] = []
    world.at(101.0, lambda: left.extend(queue.close()))
    with pytest.raises(QueueClosedError):
        queue.put("b")
    assert left == ["a"]
    assert queue.take() == []
    with pytest.raises(QueueClosedError):
        queue.put("c")


def test_take_waits_exactly_until_its_moment() -> None:
    world = World()
    queue = world.queue()
    assert queue.take(until_s=100.02) == []
    assert (world.now, world.waits) == (100.02, [pytest.approx(0.02)])
    assert queue.take(until_s=100.0) == []  # past: only a look
    assert len(world.waits) == 1


def test_take_wakes_for_an_item() -> None:
    world = World()
    queue = world.queue()
    world.at(107.0, lambda: queue.put("a"))
    assert queue.take() == ["a"]
    assert world.now == 107.0


def test_cancelled_item_leaves_and_makes_room() -> None:
    queue = World().queue(1)
    queue.put("a")
    assert queue.remove("a")
    assert not queue.remove("a")
    queue.put("b")
    assert queue.take(until_s=0.0) == ["b"]


def test_spinning_never_blocks() -> None:
    world = World()
    queue = world.queue(waiting=Spin())
    world.at(101.0, lambda: queue.put("a"))
    assert queue.take(until_s=105.0) == ["a"]
    assert queue.take(until_s=105.0) == []
    assert world.now == 105.0
    assert world.waits == []


def test_hybrid_spins_at_high_load_and_blocks_at_low() -> None:
    hybrid = Hybrid(spin_at=4.0, block_at=2.0, longest_spin_s=0.5)
    assert hybrid.spin_s() == 0.0
    for _ in range(8):
        hybrid.found(8)
    assert (hybrid.is_spinning, hybrid.spin_s()) == (True, 0.5)
    hybrid.found(0)  # between the thresholds it stays as it is
    assert hybrid.is_spinning
    for _ in range(8):
        hybrid.found(0)
    assert not hybrid.is_spinning
    for _ in range(8):
        hybrid.found(3)
    assert not hybrid.is_spinning


def test_hybrid_that_spins_in_vain_blocks() -> None:
    world = World()
    hybrid = Hybrid(longest_spin_s=0.5)
    queue = world.queue(100, waiting=hybrid)
    for item in range(80):
        queue.put(item)
    queue.take(until_s=0.0)
    assert hybrid.is_spinning
    assert queue.take(until_s=110.0) == []
    assert world.waits == [pytest.approx(9.5)]


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda: FrontQueue(0), "max_queue"),
        (lambda: FrontQueue(1, overflow="perhaps"), "overflow"),  # type: ignore[arg-type]
        (lambda: Hybrid(spin_at=1.0, block_at=2.0), "block_at"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, param: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert caught.value.param == param


@pytest.mark.parametrize("waiting", [Block, Spin, Hybrid])
@pytest.mark.parametrize("overflow", ["reject", "block", "drop-oldest"])
def test_real_threads_lose_nothing(waiting: Any, overflow: Any) -> None:
    """Four producers, one consumer: each item comes out once, is refused, or is dropped; order holds per producer."""
    queue: FrontQueue[tuple[int, int]] = FrontQueue(8, overflow=overflow, waiting=waiting(), max_block_s=60.0)
    lock, gone, taken = Lock(), [], []

    def produce(number: int) -> None:
        for index in range(200):
            try:
                dropped = queue.put((number, index))
            except QueueFullError:
                dropped = (number, index)
            if dropped is not None:
                with lock:
                    gone.append(dropped)

    producers = [Thread(target=produce, args=(number,)) for number in range(4)]
    consumer = Thread(target=lambda: [taken.extend(items) for items in iter(queue.take, [])])
    for thread in [consumer, *producers]:
        thread.start()
    for thread in producers:
        thread.join(60.0)
    left = queue.close()
    consumer.join(60.0)
    assert not consumer.is_alive()
    assert sorted(taken + gone + left) == [(number, index) for number in range(4) for index in range(200)]
    assert overflow != "block" or not gone
    for number in range(4):
        mine = [index for owner, index in taken if owner == number]
        assert mine == sorted(mine)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 3)), st.sampled_from(["reject", "drop-oldest"]))
def test_bound_holds_whatever_comes(actions: list[int], overflow: Any) -> None:
    queue = World().queue(3, overflow=overflow)
    out: list[int] = []
    for number, action in enumerate(actions):
        if action:
            try:
                dropped = queue.put(number)
            except QueueFullError:
                dropped = number
            out += [] if dropped is None else [dropped]
        else:
            out += queue.take(until_s=0.0, max_items=2)
        assert len(queue) <= 3
    out += queue.close()
    assert sorted(out) == [number for number, action in enumerate(actions) if action]
