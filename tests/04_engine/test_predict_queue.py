"""The full queue of a predictor, and how its front waits for work: on a clock that moves only when somebody waits."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_engine import (
    EngineDeadError,
    InvalidInputError,
    LocalPredictor,
    PredictFuture,
    PredictorConfig,
    PredictRequest,
    QueueFullError,
)
from aie_engine.predictors.batching import make_batcher
from aie_engine.predictors.books import Batch
from aie_engine.predictors.front import BatchFront
from aie_engine.predictors.protocol import ArrayInfo, PredictorInfo
from aie_engine.predictors.runner import BatchResult
from aie_scheduler import Hybrid, Spin

TIMEOUT_S = 60.0
INFO = PredictorInfo(
    name="fake", architecture="", inputs=(ArrayInfo("x", (1,), "float32"),), outputs=(), output="values", labels=(),
    problem=None, max_length=None, reads_text=False, max_batch_size=2, max_queue=3, kernels="numpy", num_threads=1,
)  # fmt: skip


class World:
    """A front by hand with one lane, and what happens while somebody waits: `at(moment, action)`."""

    def __init__(self, *, waiting: Any = None, max_wait_ms: float = 0.0, **more: Any) -> None:
        self.now = 100.0
        self.waits: list[float | None] = []
        self.num_spins = 0
        self.events: list[tuple[float, Any]] = []
        self.futures: dict[str, PredictFuture] = {}
        self.batch: Batch | None = None
        self.index = 0
        world = self

        class FakeCondition(threading.Condition):
            def wait(self, timeout: float | None = None) -> bool:
                world.waits.append(timeout)
                self.release()
                try:
                    return world.pass_time(None if timeout is None else world.now + timeout)
                finally:
                    self.acquire()

        config = PredictorConfig(Path("unused"), max_batch_size=2, max_queue=3, max_wait_ms=max_wait_ms)
        self.front = BatchFront(
            INFO, make_batcher(config), waiting=waiting, clock=lambda: self.now, condition=FakeCondition,
            spin=self.spin, **more,
        )  # fmt: skip
        self.front.set_lanes([self])

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

    def spin(self) -> None:
        self.num_spins += 1
        self.pass_time(self.now + 0.25)

    def start(self, batch: Batch) -> None:
        self.batch = batch

    def finish(self) -> None:
        batch, self.batch = self.batch, None
        if batch is not None:
            self.front.finish(self, batch, BatchResult([{"y": member.item["x"]} for member in batch.members]))

    def submit(self, name: str, deadline_s: float | None = None) -> PredictFuture:
        future = self.front.submit(PredictRequest(name, {"x": np.ones(1)}, deadline_s=deadline_s))
        self.futures[name] = future
        return future

    def names(self) -> list[str]:
        return [] if self.batch is None else [member.request_id for member in self.batch.members]

    def fill(self) -> None:
        """r0 and r1 are computed, r2 to r4 wait."""
        for index in range(5):
            self.submit(f"r{index}")
            if index == 1:
                self.front.step()


def test_the_oldest_who_waits_gives_way_and_is_told() -> None:
    world = World(queue_policy="drop-oldest")
    world.fill()
    seen: list[bool] = []
    world.futures["r2"].add_done_callback(lambda done: seen.append(world.front.is_alive))
    world.front.stats()  # the lock is free again when callbacks run
    world.submit("new")
    assert isinstance(error := world.futures["r2"].error(), QueueFullError)
    assert error.status == 503 and error.retry_after_s == 1.0 and "r2 had waited longest" in str(error)
    assert seen == [True] and not world.futures["r0"].done  # it is being computed
    world.finish()
    world.front.step()
    assert world.names() == ["r3", "r4"]
    stats = world.front.stats()
    assert (stats.num_dropped, stats.num_refused, stats.num_waiting) == (1, 0, 1)


def test_nobody_is_dropped_for_a_request_that_is_refused() -> None:
    world = World(queue_policy="drop-oldest")
    world.fill()
    for name in ("r3", "r0"):
        with pytest.raises(InvalidInputError, match="in use"):
            world.front.submit(PredictRequest(name, {"x": np.ones(1)}))
    assert not any(future.done for future in world.futures.values())


@pytest.mark.parametrize("leaves", ["cut", "cancel", "expire"])
def test_a_blocked_submitter_gets_in_when_somebody_leaves(leaves: str) -> None:
    world = World(queue_policy="block", block_timeout_s=10.0)
    world.fill()
    if leaves == "expire":
        world.futures["r4"].cancel()
        world.submit("late", deadline_s=102.0)

    def leave() -> None:
        if leaves == "cut":
            world.finish()
        if leaves == "cancel":
            world.futures["r3"].cancel()
        world.front.step()

    world.at(103.0, leave)
    future = world.submit("new")
    assert (world.now, world.waits) == (103.0, [10.0])
    while not future.done:
        world.finish()
        world.front.step()
    assert future.result(0).batch.waited_s >= 3.0 if leaves == "cut" else future.result(0).batch.waited_s == 3.0
    assert world.front.stats().num_refused == 0


@pytest.mark.parametrize(("deadline_s", "ends"), [(None, 110.0), (104.0, 104.0), (200.0, 110.0), (99.0, 100.0)])
def test_a_blocked_submitter_is_refused_when_its_time_is_up(deadline_s: float | None, ends: float) -> None:
    world = World(queue_policy="block", block_timeout_s=10.0)
    world.fill()
    with pytest.raises(QueueFullError, match="queue holds 3"):
        world.submit("new", deadline_s)
    assert world.now == ends and "new" not in world.futures
    assert (world.front.stats().num_refused, world.front.stats().num_waiting) == (1, 3)


def test_a_blocked_submitter_that_finds_its_room_taken_waits_on() -> None:
    world = World(queue_policy="block", block_timeout_s=10.0)
    world.fill()
    world.at(101.0, lambda: (world.futures["r2"].cancel(), world.submit("quicker")))
    world.at(104.0, world.futures["r3"].cancel)
    world.submit("new")
    assert (world.now, world.waits) == (104.0, [10.0, 9.0])


def test_the_end_wakes_the_blocked() -> None:
    world = World(queue_policy="block")
    world.fill()
    world.at(101.0, lambda: world.front.end("closed"))
    with pytest.raises(EngineDeadError, match="closed"):
        world.submit("new")
    assert world.now == 101.0
    world.finish()
    assert all(future.done for future in world.futures.values())


def test_a_name_taken_meanwhile_is_refused() -> None:
    world = World(queue_policy="block")
    world.fill()
    world.at(101.0, lambda: (world.futures["r2"].cancel(), world.submit("new")))
    with pytest.raises(InvalidInputError, match="in use"):
        world.front.submit(PredictRequest("new", {"x": np.ones(1)}))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["submit", "submit", "cancel", "step", "finish", "pass"]), max_size=50))
def test_every_future_resolves_whoever_is_dropped(actions: list[str]) -> None:
    world = World(queue_policy="drop-oldest", max_wait_ms=2.0)
    resolved: list[str] = []
    for number, action in enumerate(actions):
        if action == "submit":
            world.submit(f"r{number}", world.now + 0.004 if number % 3 == 0 else None).add_done_callback(
                lambda done: resolved.append(done.request_id)
            )
        elif action == "cancel" and world.futures:
            list(world.futures.values())[number % len(world.futures)].cancel()
        elif action == "step" and world.batch is None:
            world.front.step()
        elif action == "finish":
            world.finish()
        elif action == "pass":
            world.now += 0.001
    for _ in range(4):
        world.finish()
        world.now += 1.0
        world.front.step()
    world.finish()
    assert sorted(resolved) == sorted(world.futures)
    stats = world.front.stats()
    assert stats.num_done + stats.num_cancelled + stats.num_expired + stats.num_dropped == len(world.futures)
    assert stats.num_waiting == stats.num_running == 0


def test_a_blocking_front_sleeps_until_there_is_something_to_do() -> None:
    world = World(max_wait_ms=500.0)
    world.at(101.0, lambda: world.submit("a"))
    world.at(102.0, lambda: world.front.end("closed"))
    world.front.run()
    assert world.waits == [None, pytest.approx(0.5), None] and world.num_spins == 0
    assert world.names() == ["a"]


def test_a_spinning_front_never_sleeps_and_sees_who_comes() -> None:
    world = World(waiting=Spin(), max_wait_ms=500.0)
    world.at(101.0, lambda: world.submit("a"))
    world.at(102.0, lambda: world.front.end("closed"))
    world.front.run()
    assert world.waits == [] and world.num_spins > 0
    assert world.names() == ["a"] and world.batch is not None and world.batch.cut_s == 101.5


def test_a_hybrid_spins_under_load_and_then_sleeps() -> None:
    world = World(waiting=Hybrid(spin_at=0.5, block_at=0.5, longest_spin_s=0.5))
    for name in ("a", "b"):
        world.submit(name)
    world.at(102.0, lambda: world.front.end("closed"))
    world.front.run()  # two were found, so it spins for half a second; then it sleeps, since nobody has come
    assert (world.num_spins, world.waits) == (2, [None]) and world.names() == ["a", "b"]


@pytest.mark.parametrize("waiting", ["block", "spin", "hybrid"])
def test_many_submitters_and_a_queue_of_one(tmp_path: Path, waiting: str) -> None:
    np.savez(tmp_path / "mlp.npz", **{"a.weight": np.eye(4, dtype=np.float32)})  # type: ignore[arg-type]
    config = PredictorConfig(
        tmp_path / "mlp.npz", input_shape=(4,), kernels="numpy", num_threads=1, max_batch_size=2, max_wait_ms=0.0,
        max_queue=1, queue_policy="block", block_timeout_s=TIMEOUT_S, waiting=waiting,  # type: ignore[arg-type]
    )  # fmt: skip
    predictor = LocalPredictor(config)
    values: list[float] = []

    def client(number: int) -> None:
        for index in range(20):
            x = np.full(4, number * 100 + index, np.float32)
            prediction = predictor.submit(PredictRequest(f"{number}-{index}", {"x": x})).result(TIMEOUT_S)
            values.append(float(prediction.outputs["a"][0]))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    predictor.close()
    assert sorted(values) == [float(number * 100 + index) for number in range(4) for index in range(20)]


@pytest.mark.parametrize(
    ("field", "value"),
    [("queue_policy", "push"), ("waiting", "sleep"), ("block_timeout_s", 0.0), ("block_timeout_s", float("inf")),
     ("block_timeout_s", float("nan"))],
)  # fmt: skip
def test_settings_that_make_no_sense(field: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=field):
        PredictorConfig(Path("unused"), **{field: value})  # type: ignore[arg-type]


def test_a_predictor_is_stuck_while_every_lane_is_at_something() -> None:
    world = World()
    front = world.front
    other = World()  # gives a second lane
    other.index = 1
    front.set_lanes([world, other])
    assert front.stats().stuck_s == 0.0
    world.submit("a")
    front.step()
    world.now += 7.0
    assert front.stats().stuck_s == 0.0  # the other lane is idle
    world.submit("b")
    front.step()
    world.now += 3.0
    assert front.stats().stuck_s == 3.0  # the one that began last
    front.lose(other, "dead")  # its batch waits for a lane
    world.now += 2.0
    assert front.stats().stuck_s == 2.0  # nobody is computing anything for whom it is not the first lane
    front.revive(other)
    assert front.stats().stuck_s == 0.0
    front.step()
    world.finish()
    other.front = front
    other.finish()
    assert front.stats().stuck_s == 0.0 and front.stats().num_done == 2


def test_what_a_batch_usually_takes_is_learnt_and_an_accident_is_forgotten() -> None:
    world = World()
    for number, took_s in enumerate([1.0, 3.0] + [60.0] + [1.0] * 40):
        world.submit(f"r{number}")
        world.front.step()
        world.now += took_s
        world.finish()
        if number == 1:
            assert world.front.stats().usual_batch_s == 2.0
        if number == 2:
            assert world.front.stats().usual_batch_s > 10.0
    assert world.front.stats().usual_batch_s == pytest.approx(1.0, abs=0.2)
