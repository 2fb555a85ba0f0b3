"""The live run serves every token once and counts time as its clock tells it."""

import pytest

from aie_scheduler.live import ByteReader, run_live


def test_every_token_is_computed_once_and_waits_are_exact() -> None:
    now = 0.0
    computed: list[int] = []

    def work(num_tokens: int) -> None:
        nonlocal now
        computed.append(num_tokens)
        now += 1.0

    result = run_live(1, work, num_requests=3, prompt_len=8, max_tokens=4, clock=lambda: now)
    # One at a time: the prompt's step gives the first token, three more steps the rest.
    assert computed == [8, 1, 1, 1] * 3
    assert (result.tokens_per_s, result.mean_batch) == (pytest.approx(1.0), 1.0)
    assert (result.mean_wait_s, result.longest_wait_s) == (pytest.approx(5.0), pytest.approx(9.0))


def test_a_batch_that_holds_all_needs_as_many_steps_as_one_request() -> None:
    computed: list[int] = []
    result = run_live(
        4, computed.append, num_requests=4, prompt_len=8, max_tokens=4, clock=lambda: float(len(computed))
    )
    assert computed == [32, 4, 4, 4]
    assert (result.tokens_per_s, result.mean_batch, result.longest_wait_s) == (pytest.approx(4.0), 4.0, 1.0)


def test_the_reader_takes_any_number_of_tokens() -> None:
    ByteReader(weight_bytes=64, token_bytes=8)(3)
