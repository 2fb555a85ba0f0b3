"""Dynamic batching: two thresholds, length buckets, exact waiting, and a reason for every batch."""

from functools import partial
from typing import Any

import pytest

from aie_scheduler import CutReason, DynamicBatcher, RequestTooLongError

static = partial(DynamicBatcher, generates=True)


def ids(plan: Any) -> list[str]:
    return [chunk.request_id for chunk in plan.chunks]


def test_batch_is_cut_when_it_is_full(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_batch_size=3, max_wait_ms=20.0)
    for name in "abcd":
        assert driver.scheduler.schedule(0.0) is None or name == "d"
        driver.add(name, 4, 1)
        if name == "c":
            assert ids(driver.step()) == ["a", "b", "c"]
    assert driver.scheduler.last_cut.reason is CutReason.FULL
    assert driver.scheduler.schedule(0.0) is None  # d waits for company
    driver.now = driver.scheduler.next_deadline(0.0)
    assert ids(driver.step()) == ["d"]
    assert driver.scheduler.last_cut.reason is CutReason.WAITED
    assert driver.scheduler.num_cuts == {CutReason.FULL: 1, CutReason.WAITED: 1}


def test_wait_is_exact(make_driver: Any) -> None:
    """Nothing just before the moment that `next_deadline` names, the batch just then."""
    driver = make_driver(DynamicBatcher, num_blocks=0, max_wait_ms=20.0)
    driver.now = 100.0
    driver.add("a", 4, 1)
    driver.add("b", 4, 1, arrival_s=100.007)
    moment = driver.scheduler.next_deadline(100.01)
    assert moment == pytest.approx(100.020)
    assert driver.scheduler.schedule(moment - 1e-6) is None
    driver.now = moment
    assert ids(driver.step()) == ["a", "b"]
    assert driver.scheduler.last_cut.waited_s == pytest.approx(0.020)
    assert driver.scheduler.next_deadline(moment) is None


def test_batch_is_cut_in_time_for_a_members_deadline(make_driver: Any) -> None:
    driver = make_driver(partial(DynamicBatcher, deadline_slack_s=0.05), num_blocks=0, max_wait_ms=1000.0)
    driver.add("a", 4, 1)
    driver.add("b", 4, 1, deadline_s=0.3)
    assert driver.scheduler.next_deadline(0.0) == pytest.approx(0.25)
    driver.now = 0.25
    assert ids(driver.step()) == ["a", "b"]
    assert driver.scheduler.last_cut.reason is CutReason.DEADLINE


def test_draining_waits_for_nobody(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_wait_ms=1000.0)
    driver.add("a", 4, 1)
    driver.scheduler.drain()
    assert driver.scheduler.next_deadline(0.0) == 0.0
    assert ids(driver.step()) == ["a"]
    assert driver.scheduler.last_cut.reason is CutReason.DRAINED


def test_expired_member_is_reported_on_time_though_no_batch_is_ripe(make_driver: Any) -> None:
    driver = make_driver(partial(DynamicBatcher, deadline_slack_s=-5.0), num_blocks=0, max_wait_ms=9000.0)
    driver.add("a", 4, 1, deadline_s=2.0)
    assert driver.scheduler.next_deadline(0.0) == 2.0
    driver.now = 2.0
    plan = driver.step()
    assert (plan.expired, plan.chunks) == (["a"], [])
    driver.check_empty()


def test_lengths_do_not_mix(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_batch_tokens=256, bucket_edges=(8, 64), max_wait_ms=10.0)
    for name, length in (("s1", 1), ("l1", 64), ("s2", 8), ("m1", 9), ("x1", 65), ("s3", 5)):
        driver.add(name, length, 1)
    driver.now = 0.01
    batches = [ids(plan) for plan in driver.run()]
    assert batches == [["s1", "s2", "s3"], ["l1", "m1"], ["x1"]]


def test_batch_keeps_the_token_budget(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_batch_tokens=32, bucket_edges=(16,), max_wait_ms=10.0)
    for name in "abc":
        driver.add(name, 15, 1)
    assert ids(driver.step()) == ["a", "b"]  # 45 tokens are more than enough: full
    assert driver.scheduler.last_cut.reason is CutReason.FULL
    with pytest.raises(RequestTooLongError, match="a batch of whole requests holds 32"):
        driver.add("long", 33, 1)
    driver.run()


def test_padding_share_is_what_a_rectangle_would_waste(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_batch_tokens=80, bucket_edges=(64,))
    driver.add("a", 10, 1)
    driver.add("b", 40, 1)
    driver.run()
    assert driver.scheduler.last_cut.padding_share == pytest.approx(30 / 80)


def test_prediction_ends_after_one_step_and_takes_no_blocks(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_wait_ms=0.0)
    driver.add("a", 7, 1)
    plan = driver.schedule()
    (chunk,) = plan.chunks
    assert (chunk.start, chunk.num_tokens, chunk.samples, chunk.block_table) == (0, 7, True, [])
    driver.scheduler.update(plan, ())  # not named as finished, and finished all the same
    assert not driver.scheduler.has_work


def test_prompt_as_long_as_the_model_is_a_fine_prediction(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_seq_len=32, max_batch_tokens=64)
    driver.add("a", 32, 1)
    driver.run()
    with pytest.raises(RequestTooLongError):
        driver.add("b", 33, 1)


def test_static_batch_closes_its_doors_until_the_last_is_done(make_driver: Any) -> None:
    driver = make_driver(static, max_batch_size=2, max_wait_ms=0.0)
    driver.add("a", 4, 2)
    driver.add("b", 4, 4)
    driver.step()
    driver.add("c", 4, 1)
    assert [ids(plan) for plan in driver.run()] == [["a", "b"], ["b"], ["b"], ["c"]]


def test_static_batch_reserves_prompt_and_output(make_driver: Any) -> None:
    driver = make_driver(static, num_blocks=8, block_size=4, max_wait_ms=0.0)
    for name in "abc":
        driver.add(name, 4, 9)  # 12 tokens are stored: 3 blocks
    assert ids(driver.step()) == ["a", "b"]
    assert driver.scheduler.stats().num_free_blocks == 2
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0
