"""Forms that take long to compile: others go on, each has so much time, and a request's timeline says so."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from aie_engine import ENGINE_PHASES, ConstraintSpec
from aie_engine.constraints import ConstraintError, Mask, MaskAhead
from aie_engine.constraints.compiling import Compilation, CompileThreads
from aie_engine.constraints.errors import ConstraintsBusyError

WAIT_S = 10.0
QUICK, SLOW = ConstraintSpec("regex", "quick"), ConstraintSpec("regex", "slow", "guided_regex")


class Everything:
    """Allows every token of the small model, for ever."""

    is_done = False

    def mask(self) -> Mask:
        return np.full(4, 0xFFFFFFFF, np.uint32)

    def masks(self, guesses: Sequence[int]) -> list[Mask]:
        return [self.mask()] * (1 + len(guesses))

    def forced(self) -> list[int]:
        return []

    def num_allowed(self, guesses: Sequence[int]) -> int:
        return len(guesses)

    def accept(self, token_id: int) -> None:
        pass


class SlowMaker:
    """Compiles what is not slow at once, and the rest when it is let go."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.begun = threading.Semaphore(0)  # one for each slow form that was begun

    def make(self, spec: ConstraintSpec) -> Everything:
        if spec.text == "slow":
            self.begun.release()
            assert self.may_go.wait(WAIT_S)
        return Everything()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Shop:
    """Threads on a clock that stands still, with a maker that may be slow."""

    def __init__(self) -> None:
        self.maker, self.clock = SlowMaker(), Clock()
        self.threads = CompileThreads(
            lambda: self.maker, num_threads=2, max_threads=3, timeout_s=10.0, wait_s=30.0, clock=self.clock
        )

    def ask(self, spec: ConstraintSpec) -> Compilation:
        return self.threads.begin(spec)

    def stick(self, num: int) -> list[Compilation]:
        """So many forms that are being compiled and do not end."""
        stuck = [self.ask(SLOW) for _ in range(num)]
        for one in stuck:
            assert self.maker.begun.acquire(timeout=WAIT_S)
            assert not one.made.done()
        return stuck


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.maker.may_go.set()
    made.threads.close()
    assert not made.threads._threads


def test_a_slow_form_holds_up_nobody(shop: Shop) -> None:
    (slow,) = shop.stick(1)
    for _ in range(5):
        assert isinstance(shop.ask(QUICK).made.result(WAIT_S), Everything)
    assert not slow.made.done()


def test_a_form_has_so_much_time_and_its_thread_is_replaced(shop: Shop) -> None:
    first, second = shop.stick(2)
    third = shop.ask(QUICK)
    shop.clock.now += 9.9
    first.give_up(shop.clock.now)
    assert not first.made.done() and first.expires_at(shop.clock.now) == 110.0
    shop.clock.now += 0.1
    first.give_up(shop.clock.now)
    with pytest.raises(ConstraintError, match="guided_regex takes longer than 10 s to compile; ask for a simpler") as e:
        first.made.result(0)
    assert (e.value.status, e.value.param) == (400, "guided_regex")
    assert isinstance(third.made.result(WAIT_S), Everything)
    assert not second.made.done() and len(shop.threads._threads) == 3
    shop.maker.may_go.set()
    assert isinstance(second.made.result(WAIT_S), Everything)
    with pytest.raises(ConstraintError):  # what comes too late is thrown away
        first.made.result(0)


def test_with_all_threads_lost_who_waits_is_told_to_come_again(shop: Shop) -> None:
    for compilation in shop.stick(2):
        shop.clock.now += 20
        compilation.give_up(shop.clock.now)
    shop.stick(1)[0].drop()
    waiting, now = shop.ask(QUICK), shop.clock.now
    assert len(shop.threads._threads) == 3, "no more than there may be"
    assert waiting.expires_at(now) == now + 10 and waiting.expires_at(now + 25) == now + 30
    waiting.give_up(now + 29)
    assert not waiting.made.done()
    waiting.give_up(now + 30)
    with pytest.raises(ConstraintsBusyError, match="try again") as e:
        waiting.made.result(0)
    assert (e.value.status, e.value.retry_after_s) == (503, 5.0)
    later = shop.ask(QUICK)
    shop.maker.may_go.set()
    assert isinstance(later.made.result(WAIT_S), Everything), "they come back"


def test_what_nobody_wants_any_more_gives_its_thread_up(shop: Shop) -> None:
    for compilation in shop.stick(2):
        compilation.drop()
    assert isinstance(shop.ask(QUICK).made.result(WAIT_S), Everything)


# In an engine


@pytest.fixture
def slow() -> Iterator[SlowMaker]:
    maker = SlowMaker()
    yield maker
    maker.may_go.set()


@pytest.fixture
def rig(new_rig: Callable[..., Any], slow: SlowMaker) -> Iterator[Any]:
    clock = Clock()
    masks = MaskAhead(lambda: slow, timeout_s=10.0, clock=clock)
    made = new_rig(masks=masks)
    made.core.clock = made.clock = clock
    woken = threading.Event()
    made.core.wake, made.woken = woken.set, woken
    yield made
    slow.may_go.set()
    masks.close()


def of(rig: Any, name: str) -> Any:
    (report,) = rig.core.timelines.explain([name], rig.clock.now).requests
    return report


def spent(report: Any) -> dict[str, int]:
    return {name: us for name, us in report.phases_us.items() if us}


def test_compiling_is_a_phase_of_its_own(rig: Any, slow: SlowMaker) -> None:
    rig.add("formed", [1, 2, 3], constraint=SLOW)
    assert slow.begun.acquire(timeout=WAIT_S)
    rig.clock.now += 2.5
    report = of(rig, "formed")
    assert (report.state, report.is_open, spent(report)) == ("compiling", True, {"compiling": 2_500_000})
    rig.clock.now += 0.5
    slow.may_go.set()
    assert rig.woken.wait(WAIT_S)
    rig.run()
    report = of(rig, "formed")
    assert rig.last("formed").finish_reason == "length"
    assert spent(report) == {"compiling": 3_000_000} and report.total_us == 3_000_000
    assert next(iter(report.phases_us)) == next(iter(ENGINE_PHASES)) == "compiling"


def test_a_form_that_takes_too_long_is_that_requests_error_alone(
    rig: Any, slow: SlowMaker, answer: Callable[..., tuple[int, ...]]
) -> None:
    rig.add("slow", [1, 2, 3], constraint=SLOW)
    assert slow.begun.acquire(timeout=WAIT_S)
    rig.add("quick", [4, 5], constraint=QUICK)
    rig.add("free", [6, 7])
    assert rig.woken.wait(WAIT_S)
    rig.run()
    for name, prompt in (("quick", [4, 5]), ("free", [6, 7])):
        assert rig.tokens(name) == answer(prompt, 5)
    assert not rig.core.has_work and rig.core.next_step_at(rig.clock.now) == rig.clock.now + 10
    rig.clock.now += 10
    rig.step()
    error = rig.last("slow").error
    assert (error.code, error.status, error.param) == ("invalid_constraint", 400, "guided_regex")
    assert "takes longer than 10 s" in error.message
    report = of(rig, "slow")
    assert (report.state, spent(report)) == ("error", {"compiling": 10_000_000})
    assert rig.core.next_step_at(rig.clock.now) is None and rig.all_blocks_free


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
def test_who_ends_while_its_form_is_compiled(rig: Any, slow: SlowMaker, how: str) -> None:
    rig.add("slow", [1, 2, 3], constraint=SLOW, deadline_s=rig.clock.now + 4)
    assert slow.begun.acquire(timeout=WAIT_S)
    assert rig.core.next_step_at(rig.clock.now) == rig.clock.now + 4
    rig.clock.now += 4 if how == "deadline" else 1
    if how == "cancelled":
        rig.core.cancel("slow")
    rig.step()
    assert rig.last("slow").finish_reason == how and not rig.core.has_work
    assert list(spent(of(rig, "slow"))) == ["compiling"]


def test_an_id_is_in_use_while_its_form_is_compiled(rig: Any, slow: SlowMaker) -> None:
    rig.add("twice", [1, 2, 3], constraint=SLOW)
    for constraint in (SLOW, None):
        rig.add("twice", [1, 2, 3], constraint=constraint)
        (event,) = rig.step()
        assert event.error.status == 400 and "in use" in event.error.message
    assert of(rig, "twice").state == "compiling"
