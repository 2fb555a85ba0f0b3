"""Why the first in the queue was not admitted: said in every plan, so that somebody can be told."""

from typing import Any

from aie_scheduler import HeldBack


def test_nobody_waits_nobody_is_held_back(make_driver: Any) -> None:
    driver = make_driver()
    driver.add("a", 6, 3)
    assert all(plan.held is None for plan in driver.run())


def test_a_full_batch(make_driver: Any) -> None:
    driver = make_driver(max_batch_size=2)
    for name in "abc":
        driver.add(name, 6, 3)
    assert driver.step().held == HeldBack("c", "batch_full", 2, 60)
    driver.run()


def test_too_few_blocks_and_who_holds_them(make_driver: Any) -> None:
    driver = make_driver(num_blocks=20, max_batch_tokens=64)
    for index, prompt_len in enumerate((4, 20, 9, 13)):
        driver.add(f"r{index}", prompt_len, 2)
    driver.add("big", 30, 2)
    held = driver.step().held
    assert held == HeldBack("big", "blocks", 8, 5, (("r1", 6), ("r3", 4), ("r2", 3)))
    driver.run()


def test_a_budget_that_others_have_spent(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=8, max_batch_size=8)
    driver.add("a", 8, 2)
    driver.add("b", 8, 2)
    held = driver.step().held
    assert (held.request_id, held.reason, held.holders) == ("b", "budget", ())
    driver.run()


def test_a_prefix_that_is_being_computed(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=16)
    driver.add("a", 40, 2, tokens=[*range(40)])
    driver.add("b", 40, 2, tokens=[*range(40)])
    held = [driver.step().held for _ in range(4)]
    assert held == [HeldBack("b", "prefix", 11, 53, (("a", 11),))] * 3 + [None]
    driver.run()


def test_a_preemption_admits_nobody(make_driver: Any) -> None:
    driver = make_driver(num_blocks=10)
    driver.add("a", 8, 24)
    driver.add("b", 8, 24)
    while not (plan := driver.step()).preempted:
        pass
    assert plan.admitted == {}
    assert (plan.held.request_id, plan.held.reason, plan.held.holders[0][0]) == ("b", "blocks", "a")
    driver.run()
