"""The prefix cache: who shares what with whom, and what must never be found.

The driver compares every token of every cached block with what the request itself has there.
"""

from typing import Any

from aie_scheduler import Request, SchedulerConfig

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


def test_choices_of_one_prompt_share_its_prefill(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=64)
    for index in range(4):
        driver.add(f"choice {index}", 14, 5, tokens=[*SYSTEM, 1, 2])
    driver.run()
    assert hits(driver) == {"choice 0": [0], "choice 1": [12], "choice 2": [12], "choice 3": [12]}
    assert sum(plan.num_tokens for plan in driver.steps) == 14 + 3 * 2 + 4 * 4


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
