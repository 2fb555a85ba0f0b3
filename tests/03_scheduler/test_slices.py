"""A long prompt among streams that decode: how much longer their steps get, and what short prompts care."""

from typing import Any

import pytest

from aie_scheduler import ContinuousBatcher, Percentiles, Request, SchedulerConfig, StepPlan

DEPTH = 4096  # tokens at which attention costs a token as much as all else: SmolLM2-135M


def cost_s(plan: StepPlan) -> float:
    """A step as it is on two cores: 6 ms, and 1.4 ms for each token, as much again for attention at 4096 tokens."""
    tokens = sum(1 + (chunk.start + position) / DEPTH for chunk in plan.chunks for position in range(chunk.num_tokens))
    return 6e-3 + 1.4e-3 * tokens


def gaps_of(
    num_streams: int, *, long_prompt: int = 0, num_long: int = 1, **config: Any
) -> tuple[Percentiles, dict[str, float]]:
    """Times between the tokens of each of `num_streams`, from the arrival of the long prompts to their first tokens (or
    for 100 steps without one), and when those came.
    """
    scheduler = ContinuousBatcher(
        SchedulerConfig(**({"max_batch_size": 64, "num_blocks": 4096, "max_seq_len": 8192} | config))
    )
    for index in range(num_streams):
        scheduler.add(Request(request_id=f"stream {index}", prompt_len=60, max_tokens=4000))
    plan = scheduler.schedule(0.0)
    while len(plan.chunks) < num_streams or plan.num_tokens > num_streams:
        scheduler.update(plan, ())
        plan = scheduler.schedule(0.0)
    scheduler.update(plan, ())
    for index in range(num_long if long_prompt else 0):
        scheduler.add(Request(request_id=f"long {index}", prompt_len=long_prompt, max_tokens=100))
    now, gaps, first = 0.0, [], {}
    while len(first) < num_long and len(gaps) < (100_000 if long_prompt else 100 * num_streams):
        plan = scheduler.schedule(now)
        step_s = cost_s(plan)
        now += step_s
        decoding = [chunk for chunk in plan.chunks if chunk.request_id.startswith("stream")]
        assert len(decoding) == num_streams, "a stream went without its token"
        gaps += [step_s] * num_streams
        first |= {c.request_id: now for c in plan.chunks if c.request_id.startswith("long") and c.samples}
        scheduler.update(plan, ())
    return Percentiles.of(gaps), first


@pytest.mark.parametrize("num_streams", [12, 16, 32, 63])
def test_a_long_prompt_slows_streams_down_to_a_third_at_most(num_streams: int) -> None:
    alone, _ = gaps_of(num_streams)
    beside, _ = gaps_of(num_streams, long_prompt=4000)
    assert beside.p99 <= 3.0 * alone.p99
    unbounded, _ = gaps_of(num_streams, long_prompt=4000, max_prefill_tokens=None)
    assert unbounded.p99 > 7 * alone.p99 or num_streams > 16


def test_the_long_prompt_itself_gets_on() -> None:
    """Beside sixteen streams it takes twice as long as if they had to wait for it, not ten times."""
    _, bounded = gaps_of(16, long_prompt=4000)
    _, unbounded = gaps_of(16, long_prompt=4000, max_prefill_tokens=None)
    assert unbounded["long 0"] < bounded["long 0"] < 2 * unbounded["long 0"]


def test_a_crowd_of_long_prompts_is_not_held_up_by_a_few_streams() -> None:
    """Two streams, forty long prompts: the slices grow with the crowd."""
    _, bounded = gaps_of(2, long_prompt=600, num_long=40)
    _, unbounded = gaps_of(2, long_prompt=600, num_long=40, max_prefill_tokens=None)
    assert max(bounded.values()) < 1.5 * max(unbounded.values())


def test_short_prompts_go_whole_and_pass_a_long_one(make_driver: Any) -> None:
    driver = make_driver(
        max_batch_size=16, max_batch_tokens=512, max_seq_len=2048, num_blocks=1024, max_prefill_tokens=256
    )
    driver.add("stream", 4, 50)
    driver.step()
    driver.add("long", 1500, 2)
    driver.step()
    driver.add("short", 190, 2)
    sizes = {chunk.request_id: chunk.num_tokens for chunk in driver.step().chunks}
    assert sizes["short"] == 190 and 16 <= sizes["long"] <= 66
    driver.run()


def test_a_short_prompt_behind_a_long_one_in_the_queue_goes_whole(make_driver: Any) -> None:
    driver = make_driver(
        max_batch_size=16, max_batch_tokens=512, max_seq_len=2048, num_blocks=2048, max_prefill_tokens=256
    )
    driver.add("stream", 4, 50)
    driver.step()
    for index in range(3):
        driver.add(f"long {index}", 1500, 2)
    driver.add("short", 100, 2)
    plan = driver.step()
    assert {chunk.request_id: chunk.num_tokens for chunk in plan.chunks}["short"] == 100
    assert plan.num_tokens <= 1 + 256
    driver.run()


def test_no_more_than_the_limit_while_others_decode_and_no_limit_while_none_do(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=64, max_prefill_tokens=16, num_blocks=256)
    driver.add("a", 60, 10)
    assert driver.step().num_tokens == 60
    for index in range(4):
        driver.add(f"r{index}", 12, 3)
    plan = driver.step()
    assert [(chunk.request_id, chunk.num_tokens) for chunk in plan.chunks] == [("a", 1), ("r0", 12), ("r1", 4)]
    driver.run()


def test_without_a_limit_the_budget_is_the_limit(make_driver: Any) -> None:
    driver = make_driver(max_batch_tokens=64, max_prefill_tokens=None, num_blocks=256)
    driver.add("a", 4, 10)
    driver.step()
    driver.add("b", 100, 3)
    assert driver.step().num_tokens == 64
    driver.run()


def test_what_the_cache_spares_does_not_count(make_driver: Any) -> None:
    """A long prompt with little left to compute is a short one."""
    driver = make_driver(max_batch_tokens=512, max_seq_len=2048, num_blocks=1024, max_prefill_tokens=256)
    text = [index % 1000 for index in range(1000)]
    driver.add("first", 900, 1, tokens=text[:900])
    driver.run()
    driver.add("stream", 4, 30)
    driver.step()
    driver.add("second", 1000, 2, tokens=text)
    assert [chunk.num_tokens for chunk in driver.step().chunks] == [1, 100]
    driver.run()


@pytest.mark.parametrize("depth", [0, 60_000])
def test_slices_never_vanish(make_driver: Any, depth: int) -> None:
    driver = make_driver(max_batch_tokens=512, max_seq_len=80_000, num_blocks=20_000, max_prefill_tokens=64)
    driver.add("long", depth + 2000, 2)
    while (state := driver.scheduler.state_of("long")).num_computed < depth:
        driver.scheduler.update(driver.scheduler.schedule(0.0), ())
    before = state.num_computed
    driver.scheduler.add(Request(request_id="stream", prompt_len=4, max_tokens=100))
    for _ in range(3):
        driver.scheduler.update(driver.scheduler.schedule(0.0), ())
    assert state.num_computed >= before + 8
