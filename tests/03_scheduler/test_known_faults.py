"""Faults that serving engines have really shipped, one test each. The four best known ones go by their names:

off-by-one at a block boundary      the token at a block's edge has no block, or one too many is taken
empty prefill on a full cache hit   everything is cached, nothing is computed, and there is no row to sample from
preempt-then-hit                    a preempted request finds its own blocks again, and its books are wrong
stalled admission                   room for the first in the queue, and nobody is admitted
"""

from typing import Any

import pytest


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17])
@pytest.mark.parametrize("output_len", [1, 2, 3, 4, 5, 8, 9])
def test_off_by_one_at_a_block_boundary(make_driver: Any, prompt_len: int, output_len: int) -> None:
    """The token at position p needs block p // A. The driver checks that it is there; here: that no more are held."""
    driver = make_driver(block_size=4)
    driver.add("a", prompt_len, output_len)
    while (plan := driver.step()) is not None:
        (chunk,) = plan.chunks
        end = chunk.start + chunk.num_tokens
        reserved = min(prompt_len + 1, prompt_len + output_len - 1)  # at admission: the prompt and one more, if any
        assert len(chunk.block_table) == -(-max(end, reserved) // 4), chunk
    driver.check_empty()
    assert driver.sampled["a"] == output_len


def test_cache_of_exactly_the_right_size_is_enough(make_driver: Any) -> None:
    """Prompt 5, output 4: eight tokens are ever stored, and eight places there are."""
    driver = make_driver(block_size=4, num_blocks=2)
    driver.add("a", 5, 4)
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0


def test_preempt_then_resume(make_driver: Any) -> None:
    """The later request loses its blocks, comes back first in line, is recomputed whole, and samples no token twice."""
    driver = make_driver(block_size=4, num_blocks=10, prefix_caching=False)
    driver.add("a", 8, 24)
    driver.add("b", 8, 24)
    driver.add("c", 20, 2)
    while not (plan := driver.step()).preempted:
        pass
    assert [lost.request_id for lost in plan.preempted] == ["b"]
    sampled = driver.sampled["b"]
    assert 0 < sampled < 24
    state = driver.scheduler.state_of("b")
    assert (state.num_computed, state.num_tokens, state.block_table) == (0, 8 + sampled, [])
    later = driver.run()
    resumed = next(chunk for plan in later for chunk in plan.chunks if chunk.request_id == "b")
    assert (resumed.start, resumed.num_tokens, resumed.samples) == (0, 8 + sampled, True)
    assert driver.sampled == {"a": 24, "b": 24, "c": 2}
    assert driver.first_step["c"] >= next(
        index for index, plan in enumerate(driver.steps) for chunk in plan.chunks if chunk is resumed
    ), "c, who came later, went before b"


def test_preempted_request_is_recomputed_in_chunks_without_sampling_in_between(make_driver: Any) -> None:
    driver = make_driver(block_size=4, num_blocks=16, max_batch_tokens=8, max_batch_size=4)
    driver.add("a", 8, 30)
    driver.add("b", 24, 20)
    driver.run()
    assert driver.scheduler.stats().num_preemptions > 0
    assert driver.sampled == {"a": 30, "b": 20}
    assert any(not chunk.samples and chunk.start > 0 for plan in driver.steps for chunk in plan.chunks)


def test_the_last_in_rank_is_preempted_and_not_the_urgent(make_driver: Any) -> None:
    driver = make_driver(block_size=4, num_blocks=10)
    driver.add("cheap", 8, 24, priority=1)
    driver.step()
    driver.add("urgent", 8, 24, priority=-1)
    victims = [lost.request_id for plan in driver.run() for lost in plan.preempted]
    assert set(victims) == {"cheap"}


def test_stalled_admission(make_driver: Any) -> None:
    """KV blocks free and a place in the batch, yet nobody admitted: not at first and not after a crowd."""
    driver = make_driver(block_size=4, num_blocks=8, max_seq_len=32, max_batch_size=4)
    for round_number in range(3):
        for index in range(6):
            driver.add(f"{round_number}.{index}", 31 if index == 2 else 9, 1 if index == 2 else 8)
        while driver.scheduler.has_work:
            stats = driver.scheduler.stats()
            head = next(iter(driver.scheduler._waiting), None)
            running = [state for state in map(driver.scheduler.state_of, driver.prompt) if state and state.block_table]
            growth = sum(min(2, -(-state.max_cached // 4) - len(state.block_table)) for state in running)
            plan = driver.step()
            assert plan is not None and plan.chunks, f"stalled: {stats}"
            fits = head is not None and -(-(head.num_tokens + 1) // 4) + growth <= stats.num_free_blocks
            if fits and stats.num_running < 4 and not plan.preempted:
                assert head.request_id in {chunk.request_id for chunk in plan.chunks}, f"not admitted: {stats}"
    driver.check_empty()


@pytest.mark.parametrize("prompt_len", [4, 5, 8, 12, 13, 16])
@pytest.mark.parametrize("output_len", [1, 2, 6])
def test_empty_prefill_on_a_full_cache_hit(make_driver: Any, prompt_len: int, output_len: int) -> None:
    """All of the prompt is cached, yet at least its last token is computed, in a block that nobody else reads."""
    driver = make_driver(block_size=4)
    driver.add("first", prompt_len, output_len)
    driver.run()
    prompt = driver.tokens["first"][:prompt_len]
    for name in ("again", "live", "beside"):
        driver.add(name, prompt_len, output_len, tokens=prompt)
    (again, *_) = driver.step().chunks
    assert again.start == (prompt_len - 1) // 4 * 4
    assert again.num_tokens >= 1 and again.samples
    driver.run()
    answers = {name: driver.tokens[name] for name in driver.prompt}
    assert all(tokens == answers["first"] for tokens in answers.values())


@pytest.mark.parametrize("num_blocks", [10, 11, 12, 14])
def test_preempt_then_hit(make_driver: Any, num_blocks: int) -> None:
    """A preempted request comes back, finds what is left of itself in the cache, prompt and sampled tokens alike, goes
    on where that ends, and its blocks are counted once.
    """
    driver = make_driver(block_size=4, num_blocks=num_blocks)
    driver.add("a", 8, 24)
    driver.add("b", 8, 24)
    while not (plan := driver.step()).preempted:
        driver.check_books()
    (lost,) = plan.preempted
    sampled = driver.sampled[lost.request_id]
    while lost.request_id not in (plan := driver.step()).admitted:
        driver.check_books()
    found = plan.admitted[lost.request_id]
    state = driver.scheduler.state_of(lost.request_id)
    assert 0 <= found <= lost.lost_tokens
    assert len(state.block_table) == -(-(state.prompt_len + sampled + 1) // 4)
    (chunk,) = [chunk for chunk in plan.chunks if chunk.request_id == lost.request_id]
    assert (chunk.start, chunk.num_tokens) == (found, 8 + sampled - found) and chunk.samples
    driver.check_books()
    driver.run()
    assert driver.sampled == {"a": 24, "b": 24}
    assert driver.scheduler.stats().num_recomputed_tokens == lost.lost_tokens - found


def test_preempt_then_hit_by_another_while_it_waits(make_driver: Any) -> None:
    """What the victim leaves behind serves others, and itself again when they are done with it."""
    driver = make_driver(block_size=4, num_blocks=16, max_batch_size=3)
    driver.add("a", 8, 40, priority=-1)
    driver.add("b", 8, 40)
    while not (plan := driver.step()).preempted:
        pass
    (lost,) = plan.preempted
    assert lost.request_id == "b"
    driver.add("c", 14, 2, tokens=[*driver.tokens["b"][:13], 1], priority=-1)
    while "c" not in driver.ended:
        driver.step()
        driver.check_books()
    assert driver.hits["c"][0] == 12
    driver.run()
    assert driver.sampled == {"a": 40, "b": 40, "c": 2}


def test_admission_reserves_the_whole_prompt(make_driver: Any) -> None:
    """Two long prompts, room for one: the second waits, instead of both being begun on the same free blocks."""
    driver = make_driver(block_size=4, num_blocks=16, max_batch_tokens=16)
    driver.add("a", 40, 2)
    driver.add("b", 40, 2)
    driver.step()
    stats = driver.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (1, 1, 16 - 11)
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0


def test_big_request_is_not_starved_by_small_ones(make_driver: Any) -> None:
    driver = make_driver(block_size=4, num_blocks=16, max_batch_size=4)
    driver.add("r0", 8, 8)
    driver.add("big", 50, 4)
    for index in range(1, 40):
        driver.add(f"r{index}", 8, 8)
    driver.run()
    assert [*driver.ended].index("big") <= 1


def test_out_of_blocks_never_ends_a_request(make_driver: Any) -> None:
    driver = make_driver(block_size=4, num_blocks=10, max_batch_size=8)
    for index in range(8):
        driver.add(f"r{index}", 4, 30)
    driver.run()
    assert driver.scheduler.stats().num_preemptions > 0
    assert set(driver.ended.values()) == {"done"}
