"""The prefix cache: who waits for a beginning that another computes, and for how long."""

from typing import Any

import pytest

from aie_scheduler.continuous import MAX_WAITS

SYSTEM = [7 * i for i in range(1, 13)]  # twelve tokens: three blocks of four


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
