"""The scheduler that does not schedule."""

from typing import Any

from aie_scheduler import PassThrough


def test_one_at_a_time_in_order(make_driver: Any) -> None:
    driver = make_driver(PassThrough)
    for name in "abc":
        driver.add(name, 4, 3)
    batches = [[chunk.request_id for chunk in plan.chunks] for plan in driver.run()]
    assert batches == [["a"]] * 3 + [["b"]] * 3 + [["c"]] * 3


def test_prompt_beyond_the_executors_buffers_goes_through_in_chunks(make_driver: Any) -> None:
    driver = make_driver(PassThrough, max_batch_tokens=32)
    driver.add("a", 70, 2)
    assert [(chunk.num_tokens, chunk.samples) for plan in driver.run() for chunk in plan.chunks] == [
        (32, False),
        (32, False),
        (6, True),
        (1, True),
    ]
