"""Whose turn it is: priorities first, fair shares within them, and nobody starves below."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from aie_scheduler import BoundedQueue, ContinuousBatcher, DynamicBatcher, PassThrough, Request, SequenceState
from aie_scheduler.fair import MAX_IDLE_FLOWS, FairShare

predictions = partial(PassThrough, generates=False)


def served(driver: Any, num_steps: int) -> list[str]:
    """Ids in the order of service."""
    return [chunk.request_id for _ in range(num_steps) for chunk in driver.step().chunks]


def share(driver: Any, num_steps: int) -> Counter[str]:
    """Tokens served, by the part of the id before the dot."""
    tokens: Counter[str] = Counter()
    for _ in range(num_steps):
        for chunk in driver.step().chunks:
            tokens[chunk.request_id.split(".")[0]] += chunk.num_tokens
    return tokens


def test_one_client_alone_is_first_come_first_served(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0)
    for name, length in (("a", 9), ("b", 1), ("c", 30), ("d", 2)):
        driver.add(name, length, 1, client="only")
    assert served(driver, 4) == ["a", "b", "c", "d"]


def test_a_crowd_of_one_client_does_not_delay_another(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0)
    for index in range(20):
        driver.add(f"crowd.{index}", 4, 1, client="crowd")
    served(driver, 3)
    driver.add("lone.0", 4, 1, client="lone")
    assert "lone.0" in served(driver, 2)


def test_shares_are_of_work_and_not_of_requests(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0, max_queue=400)
    for index in range(200):
        driver.add(f"short.{index}", 2, 1, client="short")
    for index in range(40):
        driver.add(f"long.{index}", 32, 1, client="long")
    tokens = share(driver, 100)
    assert abs(tokens["short"] - tokens["long"]) <= 32


def test_models_share_before_their_clients_do(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0, max_queue=400)
    for index in range(30):
        for client in "123":
            driver.add(f"many{client}.{index}", 4, 1, client=client, model="many")
        driver.add(f"one.{index}", 4, 1, client="1", model="one")
    tokens = share(driver, 48)
    assert tokens == {"one": 4 * 24, "many1": 4 * 8, "many2": 4 * 8, "many3": 4 * 8}


def test_idle_time_cannot_be_saved_up(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0, max_queue=400)
    for index in range(100):
        driver.add(f"busy.{index}", 4, 1, client="busy")
    served(driver, 50)
    for index in range(50):
        driver.add(f"late.{index}", 4, 1, client="late")
    tokens = share(driver, 40)
    assert abs(tokens["busy"] - tokens["late"]) <= 4


def test_what_is_cancelled_is_not_charged(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0, max_queue=400)
    for index in range(40):
        driver.add(f"a.{index}", 4, 1, client="a")
        driver.add(f"b.{index}", 4, 1, client="b")
    for index in range(30):
        driver.cancel(f"b.{index}")
    assert share(driver, 20) == {"a": 40, "b": 40}


def test_generated_tokens_are_charged(make_driver: Any) -> None:
    driver = make_driver(PassThrough, num_blocks=64, max_queue=400)
    for index in range(20):
        driver.add(f"wordy.{index}", 4, 28, client="wordy")
        driver.add(f"brief.{index}", 4, 4, client="brief")
    ended: list[str] = []
    for _ in range(200):
        driver.step()
        ended = [name.split(".")[0] for name in driver.ended]
    counts = Counter(ended)
    assert counts["brief"] > 3 * counts["wordy"] > 0


def test_memory_does_not_grow_with_the_number_of_clients(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0, max_queue=400)
    driver.add("waits", 4, 1, client="waits", priority=9)  # somebody always waits, so the slate is never wiped
    for index in range(3 * MAX_IDLE_FLOWS):
        driver.add(f"r{index}", 4, 1, client=f"client {index}")
        driver.cancel(f"r{index}") if index % 2 else driver.step()
    assert len(driver.scheduler._fair._clients.served) <= MAX_IDLE_FLOWS + 400


def test_priority_goes_before_fairness(make_driver: Any) -> None:
    driver = make_driver(predictions, num_blocks=0)
    driver.add("a", 4, 1, client="x", priority=1)
    driver.add("b", 4, 1, client="y", priority=0)
    driver.add("c", 4, 1, client="y", priority=0)
    assert served(driver, 3) == ["b", "c", "a"]


@pytest.mark.parametrize("max_bypass", [1, 3, 10])
def test_low_priority_is_passed_so_often_and_no_more(make_driver: Any, max_bypass: int) -> None:
    driver = make_driver(predictions, num_blocks=0, max_bypass=max_bypass)
    driver.add("low", 4, 1, priority=5)
    order = []
    for index in range(2 * max_bypass + 2):
        driver.add(f"high.{index}", 4, 1)
        order += served(driver, 1)
    assert order.index("low") == max_bypass


def test_every_low_priority_request_gets_its_turn(make_driver: Any) -> None:
    """Three priorities under permanent overload from the highest: the bound holds for each lane, again and again."""
    driver = make_driver(predictions, num_blocks=0, max_bypass=4, max_queue=64)
    for index in range(5):
        driver.add(f"low.{index}", 4, 1, priority=2)
        driver.add(f"middle.{index}", 4, 1, priority=1)
    order = []
    for index in range(80):
        driver.add(f"high.{index}", 4, 1)
        order += served(driver, 1)
    for kind in ("low", "middle"):
        places = [place for place, name in enumerate(order) if name.startswith(kind)]
        assert len(places) == 5
        assert all(later - earlier <= 2 * (4 + 1) for earlier, later in zip([-1, *places], places, strict=False))


def test_no_priority_inversion_between_buckets(make_driver: Any) -> None:
    """Long requests of low priority fill their bucket again and again; an urgent short one goes next all the same."""
    driver = make_driver(
        DynamicBatcher, num_blocks=0, max_batch_size=2, max_batch_tokens=128, bucket_edges=(8, 64), max_wait_ms=0.0
    )
    for index in range(20):
        driver.add(f"long.{index}", 60, 1, priority=3)
    driver.step()
    driver.add("urgent", 4, 1, priority=0)
    assert [chunk.request_id for chunk in driver.step().chunks] == ["urgent"]


def test_urgent_request_waits_for_company_no_longer_than_max_wait(make_driver: Any) -> None:
    """A bucket that is full goes while an urgent one still waits for company: for one batch, then it is its turn."""
    driver = make_driver(
        DynamicBatcher, num_blocks=0, max_batch_size=2, max_batch_tokens=128, bucket_edges=(8, 64), max_wait_ms=10.0
    )
    driver.add("urgent", 4, 1, priority=0)
    for index in range(8):
        driver.add(f"long.{index}", 60, 1, priority=3)
    assert [chunk.request_id for chunk in driver.step().chunks] == ["long.0", "long.1"]
    driver.now = 0.010  # that batch took so long
    assert [chunk.request_id for chunk in driver.step().chunks] == ["urgent"]


def test_no_bucket_starves_under_urgent_overload(make_driver: Any) -> None:
    driver = make_driver(
        DynamicBatcher,
        num_blocks=0,
        max_batch_size=4,
        max_batch_tokens=256,
        bucket_edges=(8, 64),
        max_wait_ms=0.0,
        max_bypass=12,
    )
    driver.add("patient", 40, 1, priority=9)
    for step in range(6):
        for index in range(4):
            driver.add(f"urgent.{step}.{index}", 4, 1)
        plan = driver.step()
        if "patient" in {chunk.request_id for chunk in plan.chunks}:
            break
    assert step == 3  # after 12 others


def test_batches_do_not_mix_models(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_wait_ms=0.0)
    for index in range(6):
        driver.add(f"{'ab'[index % 2]}.{index}", 4, 1, model="ab"[index % 2])
    batches = [{chunk.request_id[0] for chunk in plan.chunks} for plan in driver.run()]
    assert batches == [{"a"}, {"b"}]


def test_members_of_a_batch_are_taken_in_turn(make_driver: Any) -> None:
    driver = make_driver(DynamicBatcher, num_blocks=0, max_batch_size=4, max_wait_ms=0.0)
    for index in range(6):
        driver.add(f"a.{index}", 4, 1, client="a")
    driver.add("b.0", 4, 1, client="b")
    driver.add("b.1", 4, 1, client="b")
    assert {chunk.request_id for chunk in driver.step().chunks} == {"a.0", "b.0", "a.1", "b.1"}


def test_queue_is_iterated_in_the_order_of_service() -> None:
    fair = FairShare()
    queue = BoundedQueue(8, fair=fair)
    states = {}
    for order, (name, client) in enumerate((("a", "x"), ("b", "x"), ("c", "y"))):
        request = Request(request_id=name, prompt_len=4, max_tokens=1, client=client)
        states[name] = SequenceState.of(request, order)
        fair.join(states[name])
        queue.push(states[name])
    queue.take(states["a"])
    fair.serve(states["a"], 4)
    fair.leave(states["a"])
    assert [state.request_id for state in queue] == ["c", "b"]
    head = queue.head()
    assert head is states["c"]


def test_generations_share_too(make_driver: Any) -> None:
    """Continuous batching, two places: a client that comes last does not wait for all of the crowd."""
    driver = make_driver(ContinuousBatcher, max_batch_size=2, max_queue=64)
    for index in range(20):
        driver.add(f"crowd.{index}", 4, 6, client="crowd")
    driver.step()
    for index in range(3):
        driver.add(f"lone.{index}", 4, 6, client="lone")
    driver.run()
    ended = [name.split(".")[0] for name in driver.ended]
    assert [place for place, who in enumerate(ended) if who == "lone"][-1] <= 8


def test_preempted_request_keeps_its_turn_and_is_charged_once(make_driver: Any) -> None:
    driver = make_driver(ContinuousBatcher, block_size=4, num_blocks=10, max_queue=64)
    for index in range(4):
        driver.add(f"{'ab'[index % 2]}.{index}", 8, 24, client="ab"[index % 2])
    charged: Counter[str] = Counter()
    fair = driver.scheduler._fair
    serve, charge = fair.serve, fair.charge
    fair.serve = lambda state, num_tokens: (charged.update({state.client: num_tokens}), serve(state, num_tokens))
    fair.charge = lambda state, num_tokens: (charged.update({state.client: num_tokens}), charge(state, num_tokens))
    driver.run()
    assert driver.scheduler.stats().num_preemptions > 0
    assert charged == {"a": 2 * (8 + 24), "b": 2 * (8 + 24)}
