"""What the dynamic batcher can be told beside its thresholds: sizes, buckets, padding, adaptive waiting; its kin."""

from functools import partial
from random import Random
from typing import Any

import pytest

from aie_scheduler import (
    ContinuousBatcher,
    CutReason,
    DynamicBatcher,
    PassThrough,
    SchedulerConfig,
    StaticBatcher,
    make_scheduler,
)
from aie_scheduler.buckets import RELEARN_EVERY, quantile_edges
from aie_scheduler.gaps import ArrivalGaps
from aie_tensor import InvalidInputError


def ids(plan: Any) -> list[str]:
    return [chunk.request_id for chunk in plan.chunks]


@pytest.fixture
def dynamic(make_driver: Any) -> Any:
    return partial(make_driver, DynamicBatcher, num_blocks=0, max_batch_tokens=4096, buckets="off")


def test_preferred_size_is_cut_at_once_and_as_large_as_can_be(dynamic: Any) -> None:
    driver = dynamic(preferred_sizes=(4, 2), max_wait_ms=10.0)
    driver.add("a", 4, 1)
    assert driver.scheduler.schedule(0.0) is None
    for name in "bcde":
        driver.add(name, 4, 1)
    assert ids(driver.step()) == ["a", "b", "c", "d"]
    assert driver.scheduler.last_cut.reason is CutReason.PREFERRED
    assert driver.scheduler.schedule(0.0) is None  # e is alone: no preferred size
    driver.now = 0.010
    assert ids(driver.step()) == ["e"]
    assert driver.scheduler.last_cut.reason is CutReason.WAITED


def test_full_batch_is_cut_down_to_a_preferred_size(dynamic: Any) -> None:
    driver = dynamic(preferred_sizes=(4,), max_batch_size=6)
    for name in "abcdef":
        driver.add(name, 4, 1)
    assert ids(driver.step()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("padding", "num_slots"), [("longest", 3 * 30), ("bucket", 3 * 64), ("packed", 50)])
def test_padding_is_what_the_executor_computes_beyond_the_prompts(dynamic: Any, padding: str, num_slots: int) -> None:
    driver = dynamic(padding=padding, buckets="fixed", bucket_edges=(64,), max_wait_ms=0.0)
    for name, length in (("a", 5), ("b", 15), ("c", 30)):
        driver.add(name, length, 1)
    cut = driver.step().cut
    assert (cut.num_tokens, cut.num_slots) == (50, num_slots)
    stats = driver.scheduler.stats()
    assert cut.padding_share == stats.padding_share == pytest.approx(1 - 50 / num_slots)
    assert stats.cuts == {CutReason.WAITED: 1}


@pytest.mark.parametrize(("padding", "sizes"), [("longest", [2, 1]), ("bucket", [1, 1, 1]), ("packed", [3])])
def test_token_budget_includes_the_padding(dynamic: Any, padding: str, sizes: list[int]) -> None:
    driver = dynamic(padding=padding, buckets="fixed", bucket_edges=(64,), max_batch_tokens=80, max_wait_ms=0.0)
    for name, length in (("a", 10), ("b", 40), ("c", 30)):
        driver.add(name, length, 1)
    assert [len(plan.chunks) for plan in driver.run()] == sizes


def test_bucket_that_is_wider_than_the_budget_still_goes(dynamic: Any) -> None:
    driver = dynamic(padding="bucket", buckets="fixed", bucket_edges=(16, 256), max_batch_tokens=100, max_wait_ms=0.0)
    driver.add("a", 90, 1)
    assert ids(driver.step()) == ["a"]


def test_quantile_edges_cut_the_traffic_into_equal_parts() -> None:
    lengths = list(range(1, 101))
    assert quantile_edges(lengths, 4) == (25, 50, 75)
    assert quantile_edges([7] * 50, 4) == (7,)
    assert quantile_edges([3], 4) == (3,)
    assert quantile_edges(lengths, 1) == ()


def test_buckets_follow_the_traffic_and_lose_nobody(dynamic: Any) -> None:
    driver = dynamic(buckets="quantiles", num_buckets=4, max_queue=2000, max_wait_ms=1000.0, max_batch_size=16)
    assert driver.scheduler.edges() == ()
    random = Random(0)
    for index in range(RELEARN_EVERY + 5):
        driver.add(f"r{index}", min(250, max(1, round(random.lognormvariate(3.5, 0.8)))), 1)
    edges = driver.scheduler.edges()
    assert len(edges) == 4 and edges[-1] == 256 and edges[0] < 35 < edges[2]
    driver.scheduler.drain()
    for plan in driver.run():
        low = max((edge for edge in edges if edge < plan.cut.bucket_edge), default=0)
        assert all(low < chunk.num_tokens <= plan.cut.bucket_edge for chunk in plan.chunks)


def test_lone_requests_do_not_wait_in_vain(dynamic: Any) -> None:
    """One every 100 ms, and 20 ms of patience: nobody will come in time."""
    driver = dynamic(adaptive_wait=True, max_wait_ms=20.0)
    waits = []
    for index in range(10):
        driver.now = 0.1 * index
        driver.add(f"r{index}", 4, 1)
        driver.now = driver.scheduler.next_deadline(driver.now)
        waits.append(driver.step().cut.waited_s)
    assert waits == [pytest.approx(0.02)] + [0.0] * 9  # the first knows nothing yet
    assert driver.scheduler.num_cuts[CutReason.QUIET] == 9


def test_company_that_is_to_be_expected_is_waited_for(dynamic: Any) -> None:
    driver = dynamic(adaptive_wait=True, max_wait_ms=20.0)
    for index in range(4):
        driver.now = 0.004 * index
        driver.add(f"r{index}", 4, 1)
        assert driver.scheduler.schedule(driver.now) is None
    driver.now = driver.scheduler.next_deadline(driver.now)
    assert driver.now == pytest.approx(0.020)
    assert len(driver.step().chunks) == 4


def test_when_a_burst_is_over_nobody_waits_for_more(dynamic: Any) -> None:
    driver = dynamic(adaptive_wait=True, max_wait_ms=20.0)
    for index in range(5):
        driver.now = 0.0005 * index
        driver.add(f"r{index}", 4, 1)
    assert driver.scheduler.next_deadline(driver.now) == pytest.approx(0.002 + 3 * 0.0005)
    driver.now = driver.scheduler.next_deadline(driver.now)
    assert driver.step().cut.reason is CutReason.QUIET


def test_gaps_are_smoothed_and_long_ones_count_as_long() -> None:
    gaps = ArrivalGaps(longest_s=0.04)
    gaps.arrive(0.0)
    assert (gaps.mean_s, gaps.give_up_s(5.0)) == (None, 5.0)
    gaps.arrive(0.008)
    assert gaps.mean_s == pytest.approx(0.008)
    gaps.arrive(3600.0)
    assert gaps.mean_s == pytest.approx(0.008 + (0.04 - 0.008) / 8)


def test_static_batch_waits_for_its_number(make_driver: Any) -> None:
    driver = make_driver(StaticBatcher, num_blocks=0, max_batch_size=3, max_wait_ms=5.0, max_batch_tokens=256)
    driver.add("a", 4, 1)
    driver.add("b", 40, 1)  # no buckets
    assert driver.scheduler.next_deadline(0.0) == pytest.approx(1.0)  # so that nobody waits for ever
    assert driver.scheduler.schedule(0.5) is None
    driver.add("c", 20, 1)
    assert ids(driver.step()) == ["a", "b", "c"]
    assert driver.scheduler.last_cut.reason is CutReason.FULL


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("dynamic", DynamicBatcher),
        ("static", StaticBatcher),
        ("passthrough", PassThrough),
        ("continuous", ContinuousBatcher),
    ],
)
def test_one_value_changes_the_scheduler(make_driver: Any, policy: str, kind: type) -> None:
    driver = make_driver(make_scheduler, policy=policy, num_blocks=128, max_batch_tokens=256)
    assert type(driver.scheduler) is kind
    for index in range(9):
        driver.add(f"r{index}", 3 + index, 1 + index % 3)
    driver.scheduler.drain()
    driver.run()
    assert set(driver.ended.values()) == {"done"}


@pytest.mark.parametrize("policy", ["dynamic", "static", "passthrough"])
def test_predictions_need_no_blocks(make_driver: Any, policy: str) -> None:
    driver = make_driver(partial(make_scheduler, generates=False), policy=policy, num_blocks=0, max_batch_tokens=256)
    for index in range(9):
        driver.add(f"r{index}", 3 + index, 1)
    driver.run()
    assert set(driver.ended.values()) == {"done"}


def test_continuous_batching_of_predictions_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="predictions take dynamic, static or passthrough"):
        make_scheduler(SchedulerConfig(num_blocks=0, max_seq_len=8), generates=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "best"),
        ("padding", "round"),
        ("buckets", "some"),
        ("preferred_sizes", (99,)),
        ("num_buckets", 0),
        ("max_bypass", 0),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        SchedulerConfig(num_blocks=0, max_seq_len=8, **{field: value})
    assert caught.value.param == field
