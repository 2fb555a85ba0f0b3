"""Continuous batching: who gets how many tokens in a step."""

from typing import Any

import pytest


def sizes(plan: Any) -> list[tuple[str, int]]:
    return [(chunk.request_id, chunk.num_tokens) for chunk in plan.chunks]


def test_nothing_to_do_is_none_and_not_an_empty_plan(make_driver: Any) -> None:
    driver = make_driver()
    assert driver.scheduler.schedule(0.0) is None
    assert driver.scheduler.next_deadline(0.0) is None


def test_decodes_come_first_and_prefill_fills_the_budget(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=16)
    driver.add("a", 4, 8)
    driver.step()
    driver.add("b", 40, 8)
    assert sizes(driver.step()) == [("a", 1), ("b", 15)]
    assert sizes(driver.step()) == [("a", 1), ("b", 15)]
    assert sizes(driver.step()) == [("a", 1), ("b", 10)]
    assert sizes(driver.step()) == [("a", 1), ("b", 1)]
    driver.run()


def test_requests_join_and_leave_at_every_step(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 3, 3)
    driver.step()
    driver.add("b", 3, 2)
    batches = [[chunk.request_id for chunk in plan.chunks] for plan in driver.run()]
    assert batches == [["a", "b"], ["a", "b"]]
    assert [*driver.ended] == ["a", "b"]


def test_first_come_first_served(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=2)
    for name in "abcdef":
        driver.add(name, 4, 3)
    driver.run()
    assert sorted(driver.first_step, key=lambda name: (driver.first_step[name], name)) == list("abcdef")


def test_lower_priority_number_goes_first(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=1)
    for name, priority in (("late", 9), ("normal", 0), ("urgent", -3), ("normal2", 0)):
        driver.add(name, 4, 2, priority=priority)
    driver.run()
    assert [*driver.ended] == ["urgent", "normal", "normal2", "late"]


def test_urgent_prompt_passes_a_prompt_under_way(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=16)
    driver.add("long", 100, 2)
    driver.step()
    driver.add("urgent", 12, 2, priority=-1)
    assert sizes(driver.step()) == [("urgent", 12), ("long", 4)]
    driver.run()


def test_running_sequences_decode_at_every_step_while_a_long_prompt_is_read(make_driver: Any) -> None:
    driver = make_driver(max_seq_len=1024, num_blocks=512)
    driver.add("a", 4, 60)
    driver.step()
    driver.add("long", 900, 2)
    for plan in driver.run():
        assert "a" in driver.ended or sizes(plan)[0] == ("a", 1)
    assert len(driver.steps) == 60, "the long prompt cost a running sequence a step"


def test_short_prompt_passes_beside_a_long_one(make_driver: Any) -> None:
    """No head-of-line blocking: eight tokens do not wait for nine hundred."""
    driver = make_driver(max_batch_tokens=64, max_seq_len=1024, num_blocks=512, prefill_share=0.875)
    driver.add("long", 900, 2)
    driver.add("short", 8, 2)
    assert sizes(driver.step()) == [("long", 56), ("short", 8)]
    driver.run()
    assert [*driver.ended] == ["short", "long"]


def test_share_that_nobody_wants_goes_back_to_the_first(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=64, max_seq_len=1024, num_blocks=512)
    driver.add("long", 900, 2)
    assert sizes(driver.step()) == [("long", 64)]
    driver.add("tiny", 3, 2)
    assert sizes(driver.step()) == [("long", 61), ("tiny", 3)]
    driver.run()


def test_prompts_are_not_cut_into_splinters(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=64, max_seq_len=1024, num_blocks=1024, block_size=16)
    for name in "abcd":
        driver.add(name, 500, 2)
    assert sizes(driver.step()) == [("a", 64)]
    driver.run()


def test_batch_never_exceeds_its_size(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=3)
    for index in range(10):
        driver.add(f"r{index}", 2, 5)
    assert max(len(plan.chunks) for plan in driver.run()) == 3


@pytest.mark.parametrize("budget", [8, 9, 16, 100])
def test_mixed_lengths_all_end_whatever_the_budget(make_driver: Any, budget: int) -> None:
    driver = make_driver(max_batch_tokens=budget, max_seq_len=512, num_blocks=160)
    for index in range(12):
        driver.add(f"r{index}", 8 if index % 3 else 300, 5 + index)
    driver.run()
    assert set(driver.ended.values()) == {"done"}


def test_deadline_is_reported_once_even_when_there_is_nothing_else_to_say(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 4, 50, deadline_s=1.0)
    driver.step()
    driver.now = 1.0
    plan = driver.scheduler.schedule(driver.now)
    assert (plan.chunks, plan.expired, plan.preempted) == ([], ["a"], [])
    driver.end("a", "expired")
    driver.scheduler.update(plan, ())
    assert driver.scheduler.schedule(2.0) is None
    driver.check_empty()


def test_waiting_and_running_requests_expire_and_the_rest_goes_on(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=2)
    driver.add("a", 4, 10, deadline_s=5.0)
    driver.add("b", 4, 10)
    driver.add("c", 4, 10, deadline_s=3.0)
    driver.step()
    driver.now = 4.0
    plan = driver.step()
    assert plan.expired == ["c"]
    driver.now = 6.0
    plan = driver.step()
    assert (plan.expired, sizes(plan)) == (["a"], [("b", 1)])
    driver.run()


def test_statistics_add_up(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=2)
    for name in "abc":
        driver.add(name, 4, 3)
    driver.step()
    stats = driver.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (2, 1, 64 - 4)
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.num_steps == len(driver.steps) == 6
    assert stats.num_tokens == 3 * (4 + 2)
    assert stats.mean_batch == pytest.approx(9 / 6)
