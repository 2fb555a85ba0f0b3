"""The front of predictors by hand: on a clock of the test's, with lanes that do what the test says."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_engine import (
    DeadlinePassedError,
    EngineDeadError,
    InvalidInputError,
    PredictionFailedError,
    PredictorConfig,
    PredictRequest,
    QueueFullError,
    RequestCancelledError,
)
from aie_engine.predictors.batching import make_batcher
from aie_engine.predictors.front import BatchFront
from aie_engine.predictors.protocol import ArrayInfo, PredictorInfo
from aie_engine.predictors.runner import BatchResult

INFO = PredictorInfo(
    name="fake", architecture="", inputs=(ArrayInfo("x", (1,), "float32"),), outputs=(), output="values", labels=(),
    problem=None, max_length=None, reads_text=False, max_batch_size=4, max_queue=6, kernels="numpy", num_threads=1,
)  # fmt: skip


class Hand:
    """A lane that keeps its batch until it is told what comes of it."""

    def __init__(self, index, front):
        self.index, self.front, self.batch = index, front, None

    def start(self, batch):
        assert self.batch is None, "one batch at a time"
        self.batch = batch

    def finish(self, failing=()):
        batch, self.batch = self.batch, None
        items = [
            PredictionFailedError("poison") if member.request_id in failing else {"y": member.item["x"] * 2}
            for member in batch.members
        ]
        self.front.finish(self, batch, BatchResult(items, 0.25, 0.5))

    def die(self):
        self.batch = None
        self.front.lose(self, "The worker was killed.")


class Rig:
    def __init__(self, num_lanes=1, **more):
        self.now = 100.0
        config = PredictorConfig(Path("unused"), max_batch_size=4, max_queue=6, **{"max_wait_ms": 10.0, **more})
        self.front = BatchFront(INFO, make_batcher(config), clock=lambda: self.now)
        self.lanes = [Hand(index, self.front) for index in range(num_lanes)]
        self.front.set_lanes(self.lanes)
        self.resolved = {}  # how often each request's future has resolved
        self.futures = {}

    def submit(self, name, **more):
        future = self.front.submit(PredictRequest(name, {"x": np.ones(1)}, **more))
        self.futures[name] = future
        future.add_done_callback(lambda done: self.resolved.update({name: self.resolved.get(name, 0) + 1}))
        return future

    def names(self, lane=0):
        batch = self.lanes[lane].batch
        return None if batch is None else [member.request_id for member in batch.members]


def test_a_batch_waits_for_company_and_no_longer():
    rig = Rig()
    first = rig.submit("a")
    rig.now += 0.009
    rig.submit("b")
    rig.front.step()
    assert rig.names() is None
    rig.now += 0.001
    rig.front.step()
    assert rig.names() == ["a", "b"]
    rig.lanes[0].finish()
    facts = first.result(0).batch
    assert (facts.size, facts.reason, facts.worker, facts.compute_s, facts.pre_s) == (2, "waited", 0, 0.5, 0.25)
    assert facts.waited_s == pytest.approx(0.01)


def test_who_watches_is_told_of_each_batch_as_who_waited_longest_in_it_was():
    rig = Rig()
    told = []
    for name in ("a", "b", "c"):
        rig.submit(name)
        rig.now += 0.006
        if name == "a":
            continue
        rig.front.step()
        if rig.names() is not None:
            rig.lanes[0].finish()
            rig.front.on_batch = told.append if name == "b" else None
    rig.now += 0.01
    rig.front.step()
    rig.lanes[0].finish()
    (facts,) = told
    assert (facts.size, facts.reason, facts.worker, facts.compute_s) == (1, "waited", 0, 0.5)
    assert facts.waited_s == pytest.approx(0.016)
    assert rig.front.stats().batch_sizes == {2: 1, 1: 1}


def test_nobody_waits_for_company_that_will_not_come():
    rig = Rig()
    first = rig.submit("a")
    rig.front.step()
    assert rig.names() is None
    rig.front.drain()
    rig.front.step()
    assert rig.names() == ["a"]
    late = rig.submit("b")  # of a request that was let in before, and has more inputs than may wait
    rig.lanes[0].finish()
    rig.front.step()
    assert rig.names() == ["b"]
    rig.lanes[0].finish()
    assert [future.result(0).batch.reason for future in (first, late)] == ["drained", "drained"]


def test_who_comes_while_a_batch_runs_shares_the_next():
    rig = Rig(max_wait_ms=0.0)
    rig.submit("a")
    rig.front.step()
    for name in "bcdef":
        rig.submit(name)
    rig.front.step()
    assert rig.names() == ["a"]
    rig.lanes[0].finish()
    rig.front.step()
    assert rig.names() == ["b", "c", "d", "e"]
    stats = rig.front.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_done, stats.batches) == (1, 4, 1, 1)


def test_batches_go_to_the_idle_lane_that_has_worked_least():
    rig = Rig(num_lanes=2, max_wait_ms=0.0)
    for name in ("a", "b"):
        rig.submit(name)
        rig.front.step()
    assert rig.names(0) == ["a"] and rig.names(1) == ["b"]
    rig.lanes[0].finish()
    rig.submit("c")
    rig.front.step()
    assert rig.names(0) == ["c"]  # the only idle one
    rig.lanes[1].finish()
    rig.lanes[0].finish()
    rig.submit("d")
    rig.front.step()
    assert rig.names(1) == ["d"] and rig.names(0) is None  # one batch against two
    rig.lanes[1].finish()
    stats = rig.front.stats()
    assert [(worker.batches, worker.rows) for worker in stats.workers] == [(2, 2), (2, 2)]
    assert stats.reasons == {"waited": 4} and stats.utilisation == 0.25


def test_priorities_first_and_a_full_room_refuses():
    rig = Rig(max_wait_ms=0.0)
    for index in range(6):
        rig.submit(f"r{index}", priority=1)
    with pytest.raises(QueueFullError):
        rig.submit("one too many")
    rig.futures["r5"].cancel()
    rig.submit("urgent", priority=0)
    rig.front.step()
    assert rig.names() == ["urgent", "r0", "r1", "r2"]
    with pytest.raises(InvalidInputError, match="in use"):
        rig.submit("r0")
    assert rig.front.stats().num_refused == 2


def test_who_cancels_or_runs_out_of_time_is_never_computed():
    rig = Rig(max_wait_ms=0.0)
    rig.submit("running", deadline_s=101.0)
    rig.front.step()
    gone, late, stays = rig.submit("gone"), rig.submit("late", deadline_s=100.5), rig.submit("stays")
    assert gone.cancel() and not gone.cancel()
    with pytest.raises(RequestCancelledError):
        gone.result(0)
    rig.now = 100.5  # while the only lane is busy
    rig.front.step()
    with pytest.raises(DeadlinePassedError):
        late.result(0)
    rig.now = 101.0  # even the one under way
    rig.front.step()
    assert isinstance(rig.futures["running"].error(), DeadlinePassedError)
    rig.lanes[0].finish()
    rig.front.step()
    assert rig.names() == ["stays"]
    assert stays.cancel()  # under way: told at once, and its result is dropped
    again = rig.submit("stays")  # the name is free again
    rig.lanes[0].finish()
    assert not again.done
    rig.front.step()
    rig.lanes[0].finish()
    assert again.result(0).outputs["y"] == 2
    stats = rig.front.stats()
    assert (stats.num_cancelled, stats.num_expired, stats.num_done) == (2, 2, 1)


def test_a_dead_workers_batch_goes_to_another_once():
    rig = Rig(num_lanes=2, max_wait_ms=0.0)
    rig.submit("a")
    rig.submit("b")
    rig.front.step()
    assert rig.names(0) == ["a", "b"]
    rig.futures["b"].cancel()
    rig.lanes[0].die()
    rig.front.step()
    assert rig.names(1) == ["a"] and rig.front.stats().resent_batches == 1
    rig.lanes[1].die()
    with pytest.raises(EngineDeadError, match="was killed"):
        rig.futures["a"].result(0)
    rig.submit("c")
    rig.front.step()
    assert rig.names(0) is rig.names(1) is None  # nobody there
    rig.front.revive(rig.lanes[1])
    rig.front.step()
    assert rig.names(1) == ["c"]


def test_the_end_fails_who_waits_and_lets_the_running_batch_finish():
    rig = Rig(max_wait_ms=0.0)
    running = rig.submit("running")
    rig.front.step()
    waiting = rig.submit("waiting")
    rig.front.end("closed")
    with pytest.raises(EngineDeadError, match="closed"):
        waiting.result(0)
    assert not running.done and not rig.front.wait_idle(0)
    rig.lanes[0].finish()
    assert running.result(0).outputs["y"] == 2 and rig.front.wait_idle(0)
    assert not rig.front.is_alive


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["submit", "cancel", "step", "pass", "finish", "fail", "die", "revive"]),
              st.integers(0, 7)), max_size=60,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, num_lanes=st.integers(1, 3), ends_early=st.booleans())
def test_every_future_resolves_exactly_once_whatever_happens(actions, num_lanes, ends_early):
    rig = Rig(num_lanes=num_lanes, max_wait_ms=2.0)
    dead, num_submitted = set(), 0
    for action, number in actions:
        lane = rig.lanes[number % num_lanes]
        if action == "submit":
            name, deadline_s = f"r{num_submitted}", rig.now + 0.004 if number % 3 == 0 else None
            num_submitted += 1
            try:
                rig.submit(name, priority=number % 2, deadline_s=deadline_s)
            except QueueFullError:
                assert name not in rig.futures
        elif action == "cancel" and rig.futures:
            list(rig.futures.values())[number % len(rig.futures)].cancel()
        elif action == "step":
            rig.front.step()
        elif action == "pass":
            rig.now += 0.001 * number
        elif action in ("finish", "fail") and lane.batch is not None:
            lane.finish([member.request_id for member in lane.batch.members] if action == "fail" else ())
        elif action == "die" and lane.index not in dead:
            lane.die()
            dead.add(lane.index)
        elif action == "revive" and lane.index in dead:
            rig.front.revive(lane)
            dead.discard(lane.index)
    if ends_early:
        rig.front.end("closed")
    for index in dead:
        rig.front.revive(rig.lanes[index])
    for _ in range(len(rig.futures) + 2):
        rig.now += 1.0
        rig.front.step()
        for lane in rig.lanes:
            if lane.batch is not None:
                lane.finish()
    assert all(future.done for future in rig.futures.values())
    assert rig.resolved == dict.fromkeys(rig.futures, 1)
    stats = rig.front.stats()
    assert stats.num_done + stats.num_failed + stats.num_cancelled + stats.num_expired == len(rig.futures)
    assert stats.num_waiting == stats.num_running == 0


def test_a_front_that_fails_tells_everybody(monkeypatch):
    rig = Rig(max_wait_ms=0.0)
    future = rig.submit("a")
    monkeypatch.setattr(rig.lanes[0], "start", lambda batch: 1 // 0)
    rig.front.run()
    rig.front.lose(rig.lanes[0], "gone")
    with pytest.raises(EngineDeadError):
        future.result(0)
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        rig.submit("b")
