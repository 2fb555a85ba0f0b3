"""Guesses at the next tokens: how many are taken into a step, and what becomes of them."""

from typing import Any

import pytest


def drafts(plan: Any) -> dict[str, int]:
    return {chunk.request_id: chunk.num_drafts for chunk in plan.chunks}


def started(driver: Any, *names: str, prompt_len: int = 6, output_len: int = 40) -> None:
    for name in names:
        driver.add(name, prompt_len, output_len)
    driver.step()


@pytest.mark.parametrize(("num_right", "num_wrong"), [(0, 3), (1, 2), (3, 0), (5, 0), (0, 1)])
def test_right_guesses_save_steps_and_wrong_ones_cost_nothing_but_their_rows(
    make_driver: Any, num_right: int, num_wrong: int
) -> None:
    driver = make_driver()
    started(driver, "a")
    known = driver.scheduler.state_of("a").num_tokens
    driver.propose("a", num_right, num_wrong)
    (chunk,) = driver.step().chunks
    assert (chunk.start, chunk.num_tokens, chunk.num_drafts) == (6, 1 + num_right + num_wrong, num_right + num_wrong)
    assert chunk.samples
    state = driver.scheduler.state_of("a")
    assert (state.num_tokens, state.num_computed) == (known + num_right + 1, known + num_right)
    driver.run()
    assert driver.sampled == {"a": 40}


def test_a_guess_holds_for_one_step(make_driver: Any) -> None:
    driver = make_driver()
    started(driver, "a")
    driver.propose("a", 3)
    driver.step()
    assert drafts(driver.step()) == {"a": 0}


def test_guesses_for_those_who_do_not_decode_are_dropped(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=8)
    driver.add("a", 20, 4)
    driver.propose("a", 3)
    assert drafts(driver.step()) == {"a": 0}
    driver.scheduler.propose("nobody", 3)
    driver.propose("a", 3)
    assert drafts(driver.step()) == {"a": 0}
    driver.run()


def test_never_beyond_what_the_request_may_ever_store(make_driver: Any) -> None:
    driver = make_driver()
    started(driver, "a", output_len=4)  # one is sampled, three to come: two guesses and the token behind them
    driver.propose("a", 8)
    assert drafts(driver.step()) == {"a": 2}
    assert driver.ended == {"a": "done"}
    driver.check_empty()


def test_the_last_token_of_a_request_is_not_guessed_at(make_driver: Any) -> None:
    driver = make_driver()
    started(driver, "a", output_len=2)
    driver.propose("a", 3)
    assert drafts(driver.step()) == {"a": 0}
    driver.check_empty()


def test_all_running_get_their_token_before_any_guess(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=4, max_batch_tokens=32)
    started(driver, *"abcd")
    for name in "abcd":
        driver.propose(name, 20)
    plan = driver.step()
    assert drafts(plan) == {"a": 20, "b": 8, "c": 0, "d": 0}
    assert plan.num_tokens == 32


def test_nobody_guesses_while_a_prompt_is_computed(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=33)
    started(driver, "a")
    driver.add("long", 100, 2)
    for _ in range(4):  # three parts and a rest
        driver.propose("a", 30)
        plan = driver.step()
        assert [chunk.num_drafts for chunk in plan.chunks] == [0, 0]
    driver.propose("a", 3)
    assert drafts(driver.step())["a"] == 3
    driver.run()


def test_who_waits_for_a_place_holds_up_no_guess(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=1, max_batch_tokens=33)
    started(driver, "a")
    driver.add("later", 10, 2)
    driver.propose("a", 5)
    assert drafts(driver.step()) == {"a": 5}
    driver.run()


def test_nobody_is_preempted_for_a_guess_now_or_soon(make_driver: Any) -> None:
    """Two run, one block is free: it is kept for who will need it, and the guesses shrink to the blocks there are."""
    driver = make_driver(num_blocks=9, block_size=4)
    started(driver, "a", "b", prompt_len=14, output_len=6)
    assert driver.scheduler.stats().num_free_blocks == 1
    for name in "ab":
        driver.propose(name, 8)
    plan = driver.step()
    assert drafts(plan) == {"a": 1, "b": 1}
    assert not plan.preempted and driver.scheduler.stats().num_free_blocks == 1
    driver.run()


def test_guesses_take_blocks_that_nobody_needs(make_driver: Any) -> None:
    driver = make_driver(num_blocks=64, block_size=4)
    started(driver, "a")
    driver.propose("a", 15)
    (chunk,) = driver.step().chunks
    assert chunk.num_drafts == 15 and len(chunk.block_table) == 6
    driver.run()


def test_blocks_filled_by_right_guesses_are_cached_and_those_of_wrong_ones_are_not(make_driver: Any) -> None:
    driver = make_driver()
    started(driver, "a", prompt_len=8)
    driver.propose("a", 3, 6)  # 8 computed + 1 + 3 right
    driver.step()
    assert driver.scheduler.state_of("a").num_computed == 12
    driver.check_cache()
    driver.cancel("a")
    assert driver.scheduler.stats().num_cached_blocks == 3


def test_a_rejected_guess_is_computed_over(make_driver: Any) -> None:
    """The driver looks at every token of the cache that a chunk builds on."""
    driver = make_driver()
    started(driver, "a", "b")
    for _ in range(6):
        driver.propose("a", 1, 3)
        driver.propose("b", 0, 5)
        driver.step()
    driver.run()
    assert driver.sampled == {"a": 40, "b": 40}


def test_a_cancel_between_schedule_and_update_forgets_the_guesses_too(make_driver: Any) -> None:
    driver = make_driver()
    started(driver, "a", "b")
    driver.propose("a", 3)
    plan = driver.schedule()
    driver.cancel("a")
    driver.finish(plan)
    driver.run()
    assert driver.ended == {"a": "cancelled", "b": "done"}
