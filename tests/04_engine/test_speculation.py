"""Guessed tokens in the engine's step: the text stays the same whatever happens, only the steps become fewer."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from aie_engine.speculation import Speculator

Answer = Callable[..., tuple[int, ...]]

WORDS = 3  # so few that the fake model's text repeats itself in parts, and guesses are right now and then
PROMPTS = [[1, 2, 0], [5], [1, 0, 2, 1, 0, 2, 1] * 3, [90, 3] * 6, [2] * 17, list(range(30))]


def test_guesses_save_steps_and_change_nothing(new_rig: Any, answer: Answer) -> None:
    plain, guessing = new_rig(num_words=WORDS), new_rig(num_words=WORDS, speculate=4)
    for rig in (plain, guessing):
        for index, prompt in enumerate(PROMPTS):
            rig.add(str(index), prompt, 40)
        rig.run()
        for index, prompt in enumerate(PROMPTS):
            assert rig.tokens(str(index)) == answer(prompt, 40, WORDS)
            assert rig.last(str(index)).finish_reason == "length"
        assert rig.all_blocks_free
    stats = guessing.core.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.steps < plain.core.stats().steps
    assert stats.tokens_decode == plain.core.stats().tokens_decode
    assert any(len(event.token_ids) > 1 for events in guessing.events.values() for event in events)


def test_draws_are_the_same_with_and_without_guesses(new_rig: Any) -> None:
    wishes = {"temperature": 3.0, "top_k": 3, "seed": 5, "repetition_penalty": 1.3, "min_tokens": 3, "logprobs": 1}
    plain, guessing = new_rig(num_words=WORDS, eos=(0,)), new_rig(num_words=WORDS, eos=(0,), speculate=5)
    for rig in (plain, guessing):
        for index, prompt in enumerate(PROMPTS):
            rig.add(str(index), prompt, 40, **{**wishes, "ignore_eos": index % 2 == 0})
        rig.run()
    assert guessing.core.stats().accepted_tokens > 0
    for index in range(len(PROMPTS)):
        name = str(index)
        assert guessing.tokens(name) == plain.tokens(name)
        assert guessing.last(name).finish_reason == plain.last(name).finish_reason
        scores = [[score for event in rig.events[name] for score in event.logprobs] for rig in (plain, guessing)]
        assert scores[0] == scores[1]
        assert [score.token_id for score in scores[0]] == list(plain.tokens(name))


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_an_answer_ends_where_it_must_amid_right_guesses(new_rig: Any, answer: Answer, max_tokens: int) -> None:
    prompt = [1, 2] * 8
    rig = new_rig(num_words=1, speculate=6)  # says 0 for ever
    rig.add("r", prompt, max_tokens)
    rig.run()
    assert rig.tokens("r") == (0,) * max_tokens == answer(prompt, max_tokens, 1)
    assert rig.last("r").finish_reason == "length"
    assert rig.all_blocks_free


def test_a_stop_token_amid_right_guesses_is_the_last(new_rig: Any) -> None:
    whole = None
    for stop in (None, 2):
        rig = new_rig(num_words=WORDS, speculate=6)
        rig.add("r", [1, 0, 2, 1, 0, 2], 60, stop_token_ids=() if stop is None else (stop,))
        rig.run()
        if whole is None:
            whole = rig.tokens("r")
        else:
            assert rig.tokens("r") == whole[: whole.index(stop) + 1]
            assert (rig.last("r").finish_reason, rig.last("r").stop_token_id) == ("stop", stop)


def test_right_guesses_up_to_a_row_that_is_no_number_count(new_rig: Any) -> None:
    rig = new_rig(num_words=1, speculate=4)
    rig.add("r", [1, 2, 3], 30)
    for _ in range(4):
        rig.step()
    known = len(rig.tokens("r"))
    assert known > 4
    plain = rig.executor._logits
    limit = 3 + known + 2

    def broken(batch: Any, token_row: int) -> Any:
        row = plain(batch, token_row)
        return row * float("nan") if batch.positions[token_row] + 1 > limit else row

    rig.executor._logits = broken
    rig.run()
    assert rig.tokens("r") == (0,) * (known + 3)
    assert rig.last("r").error.code == "engine_fault"
    assert rig.all_blocks_free


def test_whoever_cancels_between_guess_and_check_loses_nothing_of_others(new_rig: Any, answer: Answer) -> None:
    rig = new_rig(num_words=WORDS, speculate=4)
    for index in range(4):
        rig.add(str(index), [index, 1, 2], 40)
    for step in itertools.count():
        if not rig.core.has_work:
            break
        rig.step()
        if step == 6:
            rig.core.cancel("2")
    assert rig.last("2").finish_reason == "cancelled"
    for index in (0, 1, 3):
        assert rig.tokens(str(index)) == answer([index, 1, 2], 40, WORDS)
    assert rig.all_blocks_free


def test_guesses_are_bounded_by_the_rows_there_are(new_rig: Any) -> None:
    rig = new_rig(num_words=1, speculate=8, max_drafts=5)
    for index in range(4):
        rig.add(str(index), [index, 1], 40)
    most = 0
    run = rig.executor.run

    def counting(batch: Any) -> Any:
        nonlocal most
        most = max(most, batch.num_rows)
        return run(batch)

    rig.executor.run = counting
    rig.run()
    assert 4 < most <= 4 + 5


def test_guesses_stop_where_rows_are_dear(new_rig: Any) -> None:
    """Steps whose time is proportional to their tokens: a guess costs as much as a token, and can only lose."""
    rig = new_rig(num_words=WORDS, speculate=4)

    def slow() -> None:
        rig.clock.now += 0.01 * rig.num_tokens

    assemble = rig.core._runner._assembler.assemble

    def counting(chunks: Any, tokens: Any) -> Any:
        batch = assemble(chunks, tokens)
        rig.num_tokens = batch.num_tokens
        return batch

    rig.core._runner._assembler.assemble = counting
    rig.executor.on_run = slow
    for index in range(6):
        rig.add(str(index), [index, 1, 2], 100)
    rig.run()
    stats = rig.core.stats()
    assert stats.drafted_tokens < 100, "a few trials say what rows cost"
    assert stats.tokens_decode == 600


@pytest.mark.parametrize("chunk_tokens", [1, 2, 3, 5, 8, 13, 21, 34, 64])
@pytest.mark.parametrize("speculate", [0, 3])
def test_chunks_of_every_size_with_little_memory_and_shared_beginnings(
    new_rig: Any, answer: Answer, chunk_tokens: int, speculate: int
) -> None:
    """All of it mixed: prompts in chunks, preemption, a prefix cache that is hot, guesses, and drawing neighbours."""
    draw = random.Random(chunk_tokens)
    rig = new_rig(
        num_words=WORDS, speculate=speculate, num_blocks=26, max_seq_len=100, max_queue=100,
        max_batch_size=min(6, chunk_tokens), max_batch_tokens=chunk_tokens,
    )  # fmt: skip
    alone = new_rig(num_words=WORDS, prefix_caching=False)
    system = [draw.randrange(90) for _ in range(22)]
    asked: dict[str, tuple[list[int], dict[str, Any]]] = {}
    for index in range(24):
        prompt = system[: draw.choice([0, 9, 16, 22])] + [draw.randrange(90) for _ in range(draw.randrange(1, 12))]
        wishes = {} if index % 3 else {"temperature": 2.0, "seed": index, "ignore_eos": True}
        asked[str(index)] = prompt, wishes
        rig.add(str(index), prompt, 30, priority=draw.choice([0, 0, 1]), **wishes)
        alone.add(str(index), prompt, 30, **wishes)
        alone.run()
        for _ in range(draw.randrange(4)):
            rig.step()
    rig.run(20_000)
    for name, (prompt, wishes) in asked.items():
        assert rig.tokens(name) == alone.tokens(name), name
        if not wishes:
            assert rig.tokens(name) == answer(prompt, 30, WORDS)
    stats = rig.core.stats()
    assert stats.prefix_hit_tokens > 0
    if chunk_tokens > 2:
        assert stats.num_preemptions > 0
        assert bool(stats.accepted_tokens) == bool(speculate)
    assert rig.all_blocks_free


def test_the_price_of_a_guess_is_what_the_others_lose(new_rig: Any) -> None:
    speculator = Speculator(new_rig().scheduler, most=4, max_drafts=64)
    assert speculator._price(1) == 0.0, "nothing is known: try"
    for num_tokens, seconds, price in ((1, 10.0, 0.0), (5, 14.0, 0.1)):
        for _ in range(3):
            speculator.cost.observe(num_tokens, seconds)
        assert speculator._price(1) == pytest.approx(price)  # in the end: a row costs 1 of the 10 that a token takes
    for _ in range(3):
        speculator.cost.observe(8, 17.0)
    assert speculator._price(8) == pytest.approx(8 / 17)
