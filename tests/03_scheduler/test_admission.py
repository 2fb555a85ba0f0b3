"""Who is let in, and what those who are not are told."""

from typing import Any

import pytest

from aie_scheduler import (
    ContinuousBatcher,
    DynamicBatcher,
    PassThrough,
    QueueFullError,
    RequestTooLongError,
    SchedulerConfig,
)
from aie_tensor import InvalidInputError

GENERATORS = [ContinuousBatcher, PassThrough, lambda config: DynamicBatcher(config, generates=True)]
generators = pytest.mark.parametrize("make", GENERATORS, ids=["continuous", "pass-through", "static"])


@generators
def test_prompt_that_fills_the_context_is_refused(make_driver: Any, make: Any) -> None:
    driver = make_driver(make, max_seq_len=32, max_batch_tokens=64)
    with pytest.raises(RequestTooLongError, match="the prompt has 32 tokens, but the context holds 32") as caught:
        driver.add("a", 32, 1)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


@generators
def test_prompt_and_output_beyond_the_context_are_refused(make_driver: Any, make: Any) -> None:
    driver = make_driver(make, max_seq_len=32)
    with pytest.raises(RequestTooLongError, match="20 prompt tokens and max_tokens 13 make 33") as caught:
        driver.add("a", 20, 13)
    assert caught.value.param == "max_tokens"
    driver.add("b", 20, 12)
    driver.add("c", 31, 1)
    driver.run()
    assert driver.ended == {"b": "done", "c": "done"}


@generators
def test_request_that_never_fits_into_the_cache_is_refused_and_one_that_just_fits_runs(
    make_driver: Any, make: Any
) -> None:
    driver = make_driver(make, num_blocks=4, block_size=4)
    with pytest.raises(RequestTooLongError, match="need 5 KV blocks of 4 tokens, but there are 4") as caught:
        driver.add("a", 10, 8)
    assert caught.value.param == "max_tokens"
    with pytest.raises(RequestTooLongError) as caught:
        driver.add("a", 17, 1)
    assert caught.value.param == "prompt"
    driver.add("a", 10, 7)  # 16 tokens are stored: the last sampled one never is
    driver.add("b", 16, 1)
    driver.run()
    assert driver.ended == {"a": "done", "b": "done"}


@generators
@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "param"), [(0, 1, "prompt"), (1, 0, "max_tokens"), (1, -5, "max_tokens")]
)
def test_nonsense_is_refused(make_driver: Any, make: Any, prompt_len: int, max_tokens: int, param: str) -> None:
    driver = make_driver(make)
    with pytest.raises(InvalidInputError) as caught:
        driver.add("a", prompt_len, max_tokens)
    assert caught.value.param == param
    assert not driver.scheduler.has_work


@generators
def test_id_in_use_is_refused_until_it_is_free_again(make_driver: Any, make: Any) -> None:
    driver = make_driver(make)
    driver.add("a", 3, 2)
    with pytest.raises(InvalidInputError, match="in use"):
        driver.add("a", 3, 2)
    driver.run()
    driver.ended.clear()
    driver.add("a", 3, 2)
    driver.run()


@generators
def test_full_queue_refuses_and_keeps_nothing_of_the_refused(make_driver: Any, make: Any) -> None:
    driver = make_driver(make, max_queue=2)
    driver.add("a", 4, 4)
    driver.add("b", 4, 4)
    with pytest.raises(QueueFullError) as caught:
        driver.add("c", 4, 4)
    assert caught.value.retry_after_s >= 1.0
    assert driver.scheduler.state_of("c") is None
    driver.run()
    assert [*driver.ended] == ["a", "b"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_batch_size", 0),
        ("max_batch_tokens", 1),
        ("max_queue", 0),
        ("block_size", 0),
        ("num_blocks", -1),
        ("max_seq_len", 0),
        ("prefill_share", 0.0),
        ("prefill_share", 1.5),
        ("max_wait_ms", -1.0),
        ("max_wait_ms", float("nan")),
        ("bucket_edges", ()),
        ("bucket_edges", (8, 4)),
    ],
)
def test_configuration_that_makes_no_sense_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        SchedulerConfig(**{"num_blocks": 8, "max_seq_len": 32, field: value})
    assert caught.value.param == field


def test_continuous_batching_needs_a_cache() -> None:
    with pytest.raises(InvalidInputError, match="num_blocks is 0"):
        ContinuousBatcher(SchedulerConfig(num_blocks=0, max_seq_len=32))
