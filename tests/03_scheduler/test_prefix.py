"""The prefix cache: who shares what with whom, who waits for whom, and what must never be found.

The driver compares every token of every cached block with what the request itself has there.
"""

from typing import Any

import pytest

from aie_scheduler import Request, SchedulerConfig
from aie_scheduler.continuous import MAX_WAITS

SYSTEM = [7 * i for i in range(1, 13)]  # twelve tokens: three blocks of four


def hits(driver: Any) -> dict[str, list[int]]:
    return {name: hits for name, hits in driver.hits.items() if hits}


def test_equal_beginnings_are_computed_once(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 14, 2, tokens=[*SYSTEM, 1, 2])
    driver.run()
    driver.add("b", 15, 2, tokens=[*SYSTEM, 3, 4, 5])
    driver.run()
    assert hits(driver) == {"a": [0], "b": [12]}
    assert [chunk.num_tokens for plan in driver.steps for chunk in plan.chunks] == [14, 1, 3, 1]
    stats = driver.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (29, 12)


def test_a_live_request_shares_its_blocks(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 14, 20, tokens=[*SYSTEM, 1, 2])
    driver.step()
    used = driver.scheduler.stats().num_blocks - driver.scheduler.stats().num_free_blocks
    driver.add("b", 14, 20, tokens=[*SYSTEM, 3, 4])
    driver.step()
    stats = driver.scheduler.stats()
    assert stats.num_blocks - stats.num_free_blocks == used + 1, "three of b's four blocks are a's"
    a, b = (driver.scheduler.state_of(name) for name in "ab")
    assert a.block_table[:3] == b.block_table[:3]
    driver.check_books()
    driver.cancel("a")
    driver.check_books()
    driver.run()
    assert driver.ended == {"a": "cancelled", "b": "done"}


def test_a_difference_inside_a_block_ends_what_is_shared(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 14, 1, tokens=[*SYSTEM, 1, 2])
    driver.run()
    other = [*SYSTEM, 1, 2]
    other[6] += 1
    driver.add("b", 14, 1, tokens=other)
    driver.run()
    assert driver.hits["b"] == [4]


def test_the_same_block_behind_another_beginning_is_not_the_same(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 9, 1, tokens=[1, 1, 1, 1, 5, 5, 5, 5, 9])
    driver.run()
    driver.add("b", 9, 1, tokens=[2, 2, 2, 2, 5, 5, 5, 5, 9])
    driver.run()
    assert driver.hits["b"] == [0]


def test_tenants_share_nothing(make_driver: Any) -> None:
    driver = make_driver()
    for name, salt in (("a", "x"), ("b", "y"), ("c", ""), ("d", "x")):
        driver.add(name, 14, 1, tokens=[*SYSTEM, 1, 2], cache_salt=salt)
        driver.run()
    assert hits(driver) == {"a": [0], "b": [0], "c": [0], "d": [12]}


def test_who_gives_no_contents_neither_finds_nor_leaves_any(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 14, 1, tokens=[*SYSTEM, 1, 2], block_content=None)
    driver.run()
    assert driver.scheduler.stats().num_cached_blocks == 0
    driver.add("b", 14, 1, tokens=[*SYSTEM, 1, 2])
    driver.run()
    driver.add("c", 14, 1, tokens=[*SYSTEM, 1, 2], block_content=None)
    driver.run()
    assert hits(driver) == {"a": [0], "b": [0], "c": [0]}
    assert driver.scheduler.stats().prefix_query_tokens == 14, "who does not ask is not counted"


def test_switched_off_it_does_nothing(make_driver: Any) -> None:
    driver = make_driver(prefix_caching=False)
    for name in "ab":
        driver.add(name, 14, 6, tokens=[*SYSTEM, 1, 2])
        driver.run()
    assert (driver.hits["b"], driver.num_reads) == ([0], 0)
    assert driver.scheduler.stats().num_cached_blocks == 0


def test_answers_are_cached_for_the_next_turn(make_driver: Any) -> None:
    """A conversation: the second prompt is the first with its answer and more."""
    driver = make_driver()
    driver.add("turn 1", 10, 13)
    driver.run()
    conversation = [*driver.tokens["turn 1"], 1, 2, 3]
    driver.add("turn 2", len(conversation), 4, tokens=conversation)
    driver.run()
    assert driver.hits["turn 2"] == [20], "10 + 13 - 1 tokens were computed: five full blocks"


def test_the_last_block_of_an_answer_is_not_read_when_the_request_is_gone(make_driver: Any) -> None:
    """The engine forgets a finished request before `update`: its tokens are not to be read any more (driver checks)."""
    driver = make_driver()
    driver.add("a", 10, 7)  # the last of 16 computed tokens fills a block in the last step
    driver.run()
    assert driver.scheduler.stats().num_cached_blocks == 3


def test_a_prompt_that_ends_in_its_first_step_is_cached_whole(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 16, 1)
    driver.run()
    driver.add("b", 20, 1, tokens=[*driver.tokens["a"][:16], 1, 2, 3, 4])
    driver.run()
    assert driver.hits["b"] == [16]


def test_a_burst_with_one_beginning_computes_it_once(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=64)
    for index in range(8):
        driver.add(f"r{index}", 14, 3, tokens=[*SYSTEM, 100 + index, 200 + index])
    driver.step()
    assert [chunk.request_id for chunk in driver.steps[0].chunks] == ["r0"], "the others wait for what r0 computes"
    driver.step()
    assert [(chunk.request_id, chunk.start) for chunk in driver.steps[1].chunks[1:]] == [
        (f"r{index}", 12) for index in range(1, 8)
    ]
    driver.run()
    assert driver.scheduler.stats().prefix_hit_tokens == 7 * 12


def test_choices_of_one_prompt_share_its_prefill(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=64)
    for index in range(4):
        driver.add(f"choice {index}", 14, 5, tokens=[*SYSTEM, 1, 2])
    driver.run()
    assert hits(driver) == {"choice 0": [0], "choice 1": [12], "choice 2": [12], "choice 3": [12]}
    assert sum(plan.num_tokens for plan in driver.steps) == 14 + 3 * 2 + 4 * 4


def test_those_behind_who_wait_for_nothing_go_on(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=16)
    driver.add("leader", 40, 2, tokens=[*range(40)])
    driver.add("follower", 41, 2, tokens=[*range(40), 1])
    driver.step()
    driver.add("other", 2, 2)
    plan = driver.step()
    assert {chunk.request_id for chunk in plan.chunks} == {"leader", "other"}
    assert plan.held.request_id == "follower" and plan.held.reason == "prefix"
    assert plan.held.holders == (("leader", 11),)
    driver.run()
    assert driver.hits["follower"] == [40]


def test_only_the_common_part_is_waited_for(make_driver: Any) -> None:
    """The leader has 60 tokens to compute; who shares the first 8 of them waits until those are there."""
    driver = make_driver(max_batch_tokens=16)
    driver.add("leader", 60, 2, tokens=[*range(60)])
    driver.step()
    driver.add("follower", 10, 2, tokens=[*range(8), 100, 101])
    plan = driver.step()
    assert "follower" in plan.admitted and plan.admitted["follower"] == 8, "they are there since the first step"
    driver.run()


@pytest.mark.parametrize("how", ["cancel", "fail", "expire", "preempt"])
def test_followers_go_on_by_themselves_when_the_leader_is_lost(make_driver: Any, how: str) -> None:
    driver = make_driver(max_batch_tokens=16, max_batch_size=16, num_blocks=20)
    driver.add("first", 4, 40, priority=-1)
    driver.step()
    driver.add("leader", 40, 2, tokens=[*range(40)], deadline_s=5.0 if how == "expire" else None)
    for index in range(3):
        driver.add(f"follower {index}", 41, 2, tokens=[*range(40), index])
    driver.step()
    assert driver.scheduler.state_of("leader").num_computed == 15
    assert driver.scheduler.stats().num_waiting == 3
    if how == "cancel":
        driver.cancel("leader")
    elif how == "fail":
        driver.fail("leader")
    elif how == "expire":
        driver.now = 5.0
    else:
        scheduler = driver.scheduler
        plan = driver.schedule()
        scheduler._preempt(scheduler.state_of("leader"), scheduler.state_of("first"), plan)
        driver.computed["leader"] = 0
        scheduler.update(plan, [])
        driver.steps.append(plan)
        driver.computed["first"] += 1
        driver.sampled["first"] += 1
        driver.tokens["first"].append(0)
    driver.run()
    assert {name for name, end in driver.ended.items() if end == "done"} >= {f"follower {i}" for i in range(3)}
    computed_first, *others = [driver.hits[f"follower {index}"][0] for index in range(3)]
    if how == "fail":
        assert computed_first == 0, "what a failed request computed is found by nobody"
    elif how != "preempt":
        assert computed_first == 12, "15 tokens of the leader were computed: three blocks"
    assert others == [40, 40], "the first of those who waited is the new leader"


def test_what_the_failing_step_computed_is_not_found(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 14, 5, tokens=[*SYSTEM, 1, 2])
    plan = driver.schedule()
    driver.fail("a")
    driver.finish(plan)  # the others of this step are fine
    assert driver.scheduler.stats().num_cached_blocks == 0
    driver.add("b", 14, 5, tokens=[*SYSTEM, 1, 2])
    driver.run()
    assert driver.hits["b"] == [0]


def test_nothing_is_found_of_a_request_that_failed_later(make_driver: Any) -> None:
    """It may have been wrong from the start, unnoticed, since only the last row of a prompt is looked at."""
    driver = make_driver(max_batch_tokens=8)
    driver.add("a", 14, 5, tokens=[*SYSTEM, 1, 2])
    driver.step()
    plan = driver.schedule()
    driver.fail("a")
    driver.finish(plan)
    assert driver.scheduler.stats().num_cached_blocks == 0
    driver.add("b", 14, 5, tokens=[*SYSTEM, 1, 2])
    driver.run()
    assert driver.hits["b"] == [0]


def test_a_failed_request_takes_only_its_own_from_the_cache(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("good", 14, 1, tokens=[*SYSTEM, 1, 2])
    driver.run()
    driver.add("bad", 20, 5, tokens=[*SYSTEM, *range(8)])
    driver.step()
    driver.fail("bad")
    driver.add("next", 21, 1, tokens=[*SYSTEM, *range(8), 1])
    driver.run()
    assert driver.hits["next"] == [12]


def test_a_cancelled_request_leaves_what_it_had_computed(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=8)
    driver.add("a", 14, 5, tokens=[*SYSTEM, 1, 2])
    driver.step()  # 8 tokens
    plan = driver.schedule()  # 6 more
    driver.cancel("a")
    driver.finish(plan)
    driver.add("b", 14, 5, tokens=[*SYSTEM, 1, 2])
    driver.run()
    assert driver.hits["b"] == [8], "the step that ran when it was cancelled does not count"


def test_the_urgent_do_not_wait_for_the_less_urgent(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=16)
    driver.add("slow", 40, 2, tokens=[*range(40)], priority=5)
    driver.step()
    driver.add("urgent", 41, 2, tokens=[*range(40), 1], priority=0)
    plan = driver.step()
    assert plan.admitted == {"urgent": 16}
    driver.run()
    assert [*driver.ended] == ["urgent", "slow"]
    driver.add("again", 42, 1, tokens=[*range(40), 1, 2])
    driver.run()
    assert driver.hits["again"] == [40], "two had computed the same; one copy is in the cache"


def test_nobody_waits_for_others_again_and_again(make_driver: Any) -> None:
    """Every leader is cancelled before it has computed anything that counts."""
    driver = make_driver(max_batch_tokens=64, num_blocks=200)
    driver.add("leader 0", 100, 2, tokens=[*range(100)])
    driver.add("patient", 101, 2, tokens=[*range(100), 1], priority=1)
    for index in range(1, MAX_WAITS + 3):
        plan = driver.schedule()
        if "patient" in plan.admitted:
            assert index == MAX_WAITS + 1
            break
        driver.cancel(f"leader {index - 1}")
        driver.finish(plan)
        driver.add(f"leader {index}", 100, 2, tokens=[*range(100)])
    else:
        pytest.fail("it still waits")
    driver.finish(plan)
    driver.run()


def test_memory_is_taken_from_the_cache_when_it_is_needed(make_driver: Any) -> None:
    driver = make_driver(num_blocks=12, max_batch_size=2)
    for index in range(6):
        driver.add(f"r{index}", 20, 2, tokens=[100 * index + i for i in range(20)])
        driver.run()
    stats = driver.scheduler.stats()
    assert (stats.num_free_blocks, stats.num_cached_blocks) == (12, 11)
    driver.add("newest", 20, 1, tokens=[500 + i for i in range(20)])
    driver.add("oldest", 20, 1, tokens=[*range(20)])
    driver.run()
    assert hits(driver)["newest"] == [16]
    assert hits(driver)["oldest"] == [0]


def test_tails_go_before_heads(make_driver: Any) -> None:
    driver = make_driver(num_blocks=12)
    driver.add("a", 40, 1, tokens=[*range(40)])
    driver.run()  # ten blocks cached, two plain
    driver.add("b", 22, 1)  # six blocks: two plain and the last four of a
    driver.run()
    driver.add("c", 40, 1, tokens=[*range(40)])
    driver.run()
    assert driver.hits["c"] == [24]


def test_what_a_newcomer_finds_is_not_evicted_to_make_room_for_the_rest_of_it(make_driver: Any) -> None:
    driver = make_driver(num_blocks=8)
    driver.add("a", 16, 1, tokens=[*range(16)])
    driver.run()
    driver.add("b", 31, 2, tokens=[*range(16), *range(50, 65)])
    driver.run()
    assert driver.hits["b"] == [16]


def test_a_copy_takes_the_place_of_what_was_evicted_meanwhile(make_driver: Any) -> None:
    """b finds its whole prompt and computes the last block again. In the same step c is given the block it found."""
    driver = make_driver(num_blocks=8)
    driver.add("a", 16, 1, tokens=[*range(16)])
    driver.run()
    driver.add("b", 16, 2, tokens=[*range(16)])
    driver.add("c", 9, 2)
    plan = driver.step()
    assert plan.admitted == {"b": 12, "c": 0} and driver.scheduler.stats().num_free_blocks == 0
    driver.check_cache()
    driver.run()
    driver.add("d", 17, 1, tokens=[*range(17)])
    driver.run()
    assert driver.hits["d"] == [16]


def test_cached_blocks_do_not_keep_anybody_out(make_driver: Any) -> None:
    driver = make_driver(num_blocks=8)
    driver.add("a", 32, 1)
    driver.run()
    assert driver.scheduler.stats().num_cached_blocks == 8
    driver.add("b", 31, 2)
    assert [chunk.request_id for chunk in driver.step().chunks] == ["b"]
    driver.run()


def test_a_preempted_request_finds_what_is_left_of_it(make_driver: Any) -> None:
    driver = make_driver(num_blocks=10)
    driver.add("a", 8, 24)
    driver.add("b", 8, 24)
    driver.run()
    assert driver.scheduler.stats().num_preemptions > 0
    first, *later = driver.hits["b"]
    assert first == 0 and all(found >= 0 for found in later)
    assert driver.scheduler.stats().prefix_query_tokens == 16, "counted once per request"


def test_zero_hits_cost_one_look_up_per_block_and_nothing_while_decoding(make_driver: Any) -> None:
    driver = make_driver(num_blocks=200, max_seq_len=512, max_batch_size=4)
    for index in range(4):
        driver.add(f"r{index}", 40, 100)
    driver.step()
    for _ in range(10):
        driver.step()
    prompt_reads = driver.num_reads
    assert prompt_reads <= 4 * (10 + 1) + 12, "a read per block, and one that found nothing"
    driver.run()
    assert driver.num_reads - prompt_reads <= 4 * 25, "a read per block that was filled"


def test_while_the_head_lacks_blocks_nothing_is_looked_up(make_driver: Any) -> None:
    driver = make_driver(num_blocks=24, block_size=4)
    driver.add("a", 40, 50)
    driver.step()
    driver.add("big", 60, 2)
    driver.step()
    assert driver.steps[-1].held.reason == "blocks"
    before = driver.num_reads
    for _ in range(20):
        driver.step()
    assert driver.num_reads - before <= 5 + 1, "only what a fills"
    driver.run()


def test_fair_share_charges_what_had_to_be_computed(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=1, max_queue=64)
    driver.add("warm", 14, 1, tokens=[*SYSTEM, 1, 2])
    driver.run()
    for index in range(6):
        driver.add(f"hot {index}", 14, 2, tokens=[*SYSTEM, index, index], client="hot")
        driver.add(f"cold {index}", 14, 2, client="cold")
    driver.run()
    order = [name.split()[0] for name in driver.ended if name != "warm"]
    assert order[:6].count("hot") >= 4, f"a hit costs little, so whoever has them is served more often: {order}"


def test_longest_runs_are_not_needed_for_a_request_that_never_fills_a_block(make_driver: Any) -> None:
    driver = make_driver(block_size=16)
    driver.add("a", 3, 5)
    driver.run()
    assert driver.num_reads == 0


def test_the_defaults_share(make_driver: Any) -> None:
    assert SchedulerConfig(num_blocks=1, max_seq_len=2).prefix_caching
    assert Request(request_id="a", prompt_len=1, max_tokens=1).block_content is None


def test_the_less_urgent_are_not_starved_by_a_stream_that_shares_their_beginning(make_driver: Any) -> None:
    """Every step two urgent requests come, with one beginning; it is computed by ever new leaders, as the cache is too
    small to keep it. The one of lower priority has it too, and gets its turn after `max_bypass` others.
    """
    driver = make_driver(max_batch_size=2, num_blocks=12, max_batch_tokens=16, max_queue=1000, max_bypass=4)
    text = [*range(20)]
    driver.add("patient", 21, 2, tokens=[*text, 1], priority=9)
    for index in range(200):
        driver.add(f"urgent {index}", 22, 2, tokens=[*text, 2, index])
        driver.add(f"other {index}", 24, 2)
        driver.step()
        if "patient" in driver.ended:
            break
    else:
        pytest.fail(f"starved: {driver.scheduler.stats()}")
    admitted = [name for plan in driver.steps for name in plan.admitted]
    assert admitted.index("patient") <= 4 + 2 * MAX_WAITS
    driver.run()


def test_who_steps_aside_keeps_its_turn(make_driver: Any) -> None:
    """Among equals the first to come is the first to be admitted when the beginning is there."""
    driver = make_driver(max_batch_size=2, max_batch_tokens=16, max_queue=64)
    driver.add("leader", 40, 1, tokens=[*range(40)])
    for index in range(5):
        driver.add(f"follower {index}", 41, 1, tokens=[*range(40), index])
    for index in range(5):
        driver.add(f"other {index}", 5, 3)
    driver.run()
    admitted = [name for plan in driver.steps for name in plan.admitted]
    assert [name for name in admitted if "follower" in name] == [f"follower {index}" for index in range(5)]
    assert admitted.index("other 1") > admitted.index("follower 4"), "others pass only while the beginning is computed"


def test_a_parked_request_can_be_cancelled_and_expires(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=16)
    driver.add("leader", 60, 1, tokens=[*range(60)])
    driver.add("goes", 61, 1, tokens=[*range(60), 1])
    driver.add("late", 61, 1, tokens=[*range(60), 2], deadline_s=1.0)
    driver.add("stays", 61, 1, tokens=[*range(60), 3])
    driver.step()
    assert driver.scheduler.stats().num_waiting == 3
    driver.cancel("goes")
    driver.now = 1.0
    assert driver.step().expired == ["late"]
    driver.run()
    assert driver.ended["stays"] == "done" and driver.hits["stays"] == [60]
