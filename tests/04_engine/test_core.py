"""The engine's step on a model that can be predicted: what comes out, what it costs, and what fails with what."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Answer = Callable[..., tuple[int, ...]]

PROMPTS = [[5, 6, 7], [5], list(range(20)), [90, 3] * 6, [1, 2, 3, 4], [44] * 9]


def test_a_batch_says_what_each_would_say_alone(rig: Any, answer: Answer) -> None:
    for index, prompt in enumerate(PROMPTS):
        rig.add(str(index), prompt, 5 + index)
    rig.run()
    for index, prompt in enumerate(PROMPTS):
        assert rig.tokens(str(index)) == answer(prompt, 5 + index)
        assert rig.last(str(index)).finish_reason == "length"
        assert rig.last(str(index)).num_prompt_tokens == len(prompt)
    assert rig.all_blocks_free
    # 49 prompt tokens need two steps of at most 32; from then on everybody is in the same steps.
    assert rig.core.stats().steps <= 2 + 5 + len(PROMPTS)


def test_requests_join_while_others_run(rig: Any, answer: Answer) -> None:
    rig.add("first", [1, 2, 3], 6)
    rig.step()
    rig.add("second", [9, 8], 3)
    rig.step()
    assert [len(rows) for rows in rig.executor.batches] == [1, 2]
    rig.run()
    assert rig.tokens("first") == answer([1, 2, 3], 6)
    assert rig.tokens("second") == answer([9, 8], 3)


def test_a_long_prompt_is_computed_in_chunks_and_others_go_on(new_rig: Any, answer: Answer) -> None:
    rig = new_rig(max_batch_tokens=8)
    long = list(range(50))
    rig.add("short", [3], 12)
    rig.step()
    rig.add("long", long, 4)
    rig.run()
    assert all(sum(rows for _, rows in batch) <= 8 for batch in rig.executor.batches)
    assert all(event.token_ids for event in rig.events["short"])
    assert rig.tokens("long") == answer(long, 4)
    assert rig.tokens("short") == answer([3], 12)


def test_without_room_requests_are_preempted_and_lose_nothing(new_rig: Any, answer: Answer) -> None:
    rig = new_rig(num_blocks=10, max_seq_len=36)
    for index in range(4):
        rig.add(str(index), [index, 7], 30)
    rig.run()
    assert rig.core.stats().num_preemptions > 0
    for index in range(4):
        assert rig.tokens(str(index)) == answer([index, 7], 30)
        assert len(rig.events[str(index)]) == 30
    assert rig.all_blocks_free


@pytest.mark.parametrize(
    ("wishes", "expected_len", "reason"),
    [
        ({}, 3, "stop"),
        ({"ignore_eos": True}, 8, "length"),
        ({"ignore_eos": True, "stop_token_ids": "second"}, 2, "stop"),
        ({"stop_token_ids": "second"}, 2, "stop"),
    ],
)
def test_end_of_sequence_and_stop_tokens(
    new_rig: Any, answer: Answer, wishes: dict[str, Any], expected_len: int, reason: str
) -> None:
    whole = answer([11, 13], 8)
    assert len(set(whole)) == 8, "the fake model's answer must not repeat itself here"
    rig = new_rig(eos=(whole[2],))
    if "stop_token_ids" in wishes:
        wishes = {**wishes, "stop_token_ids": (whole[1],)}
    rig.add("r", [11, 13], 8, **wishes)
    rig.run()
    last = rig.last("r")
    assert rig.tokens("r") == whole[:expected_len]
    assert last.finish_reason == reason
    assert last.stop_token_id == (whole[expected_len - 1] if reason == "stop" else None)
    assert rig.all_blocks_free


def test_cancelling_frees_the_blocks_at_once(rig: Any) -> None:
    rig.add("stays", [1, 2, 3], 20)
    rig.add("goes", [4] * 20, 20)
    rig.step()
    rig.step()
    free_before = rig.allocator.num_free
    rig.core.cancel("goes")
    assert rig.allocator.num_free >= free_before + 5
    events = rig.step()
    assert rig.last("goes").finish_reason == "cancelled"
    assert [event.request_id for event in events if event.token_ids] == ["stays"]
    rig.run()
    assert rig.all_blocks_free


def test_cancelling_who_waits_or_is_not_there(new_rig: Any) -> None:
    rig = new_rig(max_batch_size=1)
    rig.add("runs", [1], 3)
    rig.add("waits", [2], 3)
    rig.step()
    rig.core.cancel("waits")
    rig.core.cancel("nobody")
    rig.run()
    rig.core.cancel("runs")
    assert not rig.core.has_work
    assert rig.last("waits").finish_reason == "cancelled"
    assert rig.tokens("waits") == ()
    assert rig.last("runs").finish_reason == "length"


def test_a_deadline_ends_a_request_wherever_it_is(new_rig: Any) -> None:
    rig = new_rig(max_batch_size=1)
    rig.add("runs", [1], 100, deadline_s=rig.clock.now + 1)
    rig.add("waits", [2], 100, deadline_s=rig.clock.now + 1)
    rig.step()
    rig.clock.now += 2
    rig.run()
    assert [rig.last(name).finish_reason for name in ("runs", "waits")] == ["deadline", "deadline"]
    assert len(rig.tokens("runs")) == 1
    assert rig.all_blocks_free


def test_an_exception_fails_the_requests_of_its_step_and_nobody_else(new_rig: Any, answer: Answer) -> None:
    rig = new_rig(max_batch_size=2)
    for name in ("a", "b", "c"):
        rig.add(name, [ord(name)], 4)
    rig.executor.failures = [None, ValueError("secret text of a kernel")]
    rig.run()
    for name in ("a", "b"):
        last = rig.last(name)
        assert (last.finish_reason, last.error.code, last.error.status) == ("error", "engine_fault", 500)
        assert "ValueError" in last.error.message and "secret" not in last.error.message
        assert rig.tokens(name) == answer([ord(name)], 1)
    assert rig.tokens("c") == answer([ord("c")], 4)
    assert rig.core.dead_reason is None
    assert rig.core.stats().failed_steps == 1
    assert rig.all_blocks_free


def test_three_failed_steps_in_a_row_are_the_end(new_rig: Any) -> None:
    rig = new_rig(max_batch_size=1)
    for index in range(5):
        rig.add(str(index), [index], 4)
    rig.executor.failures = [RuntimeError()] * 3
    rig.run()
    assert "3 failed steps" in rig.core.dead_reason
    codes = [rig.last(str(index)).error.code for index in range(5)]
    assert codes == ["engine_fault"] * 3 + ["engine_died"] * 2
    rig.add("late", [1], 4)
    rig.run()
    assert (rig.last("late").error.code, rig.last("late").error.status) == ("engine_died", 503)
    assert rig.all_blocks_free


def test_a_good_step_between_failures_is_forgiven(new_rig: Any) -> None:
    rig = new_rig(max_batch_size=1)
    for index in range(5):
        rig.add(str(index), [index], 1)
    rig.executor.failures = [RuntimeError(), RuntimeError(), None, RuntimeError(), RuntimeError()]
    rig.run()
    assert rig.core.dead_reason is None
    assert rig.last("2").finish_reason == "length"


def test_logits_that_are_no_numbers_fail_their_request_alone(rig: Any, answer: Answer) -> None:
    rig.executor.not_numbers = {66}
    rig.add("bad", [66, 1], 5)
    rig.add("good", [65, 1], 5)
    rig.run()
    assert rig.last("bad").error.code == "engine_fault"
    assert rig.tokens("bad") == ()
    assert rig.tokens("good") == answer([65, 1], 5)
    assert rig.all_blocks_free


def test_an_id_in_use_is_refused_without_harm_to_its_owner(rig: Any, answer: Answer) -> None:
    rig.add("r", [1, 2], 3)
    rig.add("r", [3, 4], 3)
    first, *rest = rig.step()
    assert (first.finish_reason, first.error.status) == ("error", 400)
    assert [event.token_ids for event in rest] == [answer([1, 2], 1)]
    rig.events.clear()
    rig.run()
    assert rig.tokens("r") == answer([1, 2], 3)[1:]


def test_what_the_scheduler_refuses_is_told_by_an_event(new_rig: Any) -> None:
    rig = new_rig(max_seq_len=16)
    rig.add("long", [1] * 16, 1)
    rig.run()
    assert (rig.last("long").error.code, rig.last("long").error.status) == ("context_length_exceeded", 400)


def test_log_probabilities_come_with_their_tokens(rig: Any) -> None:
    rig.add("r", [1, 2], 3, logprobs=2)
    rig.run()
    for event in rig.events["r"]:
        (found,) = event.logprobs
        assert found.token_id == event.token_ids[0] == found.top[0][0]
        assert found.logprob == pytest.approx(found.top[0][1])
        assert len(found.top) == 2


def test_unseeded_draws_depend_on_the_engines_seed_alone(new_rig: Any) -> None:
    def text(seed: int) -> tuple[int, ...]:
        rig = new_rig(seed=seed)
        rig.add("r", [1, 2], 12, temperature=50.0)
        rig.run()
        return tuple(rig.tokens("r"))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_seeded_draw_is_the_same_alone_and_in_a_batch(new_rig: Any) -> None:
    alone, together = new_rig(seed=1), new_rig(seed=2)
    together.add("other", [9, 9, 9], 12, temperature=50.0)
    together.step()
    for rig in (alone, together):
        rig.add("r", [1, 2], 12, temperature=50.0, seed=42)
        rig.run()
    assert alone.tokens("r") == together.tokens("r")


def test_figures(rig: Any) -> None:
    rig.add("a", [1, 2, 3], 4)
    rig.add("b", [1] * 5, 2)
    rig.step()
    stats = rig.core.stats()
    assert (stats.num_running, stats.num_waiting, stats.steps, stats.batch_size_sum) == (2, 0, 1, 2)
    assert (stats.tokens_prefill, stats.tokens_decode) == (8, 2)
    assert stats.kv_usage == pytest.approx((64 - stats.num_free_blocks) / 64)
    rig.run()
    rig.clock.now += 3
    stats = rig.core.stats()
    assert (stats.num_running, stats.steps, stats.batch_size_sum, stats.tokens_decode) == (0, 4, 6, 6)
    assert stats.batch_sizes == {2: 2, 1: 2}
    assert stats.last_step_age_s == 3
    rig.core.reset_counters()
    assert rig.core.stats().steps == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 96), min_size=1, max_size=24), st.integers(1, 12)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("fail"), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_whatever_happens_every_request_ends_once_and_no_block_is_lost(
    actions: list[tuple[str, Any, int]], new_rig: Any, answer: Answer
) -> None:
    rig = new_rig(
        num_blocks=14, max_batch_size=4, max_batch_tokens=16, max_seq_len=40, max_queue=100, num_words=3, speculate=3
    )  # fmt: skip
    prompts: dict[str, list[int]] = {}
    for kind, value, num_tokens in actions:
        if kind == "add":
            request_id = str(len(prompts))
            prompts[request_id] = value
            rig.add(request_id, value, num_tokens)
        elif kind == "cancel":
            rig.core.cancel(str(value))
        elif kind == "fail":
            rig.executor.failures = [RuntimeError()]
            rig.step()
            rig.executor.failures = []
        else:
            for _ in range(value):
                rig.step()
    rig.run()
    assert rig.all_blocks_free
    assert sorted(rig.events) == sorted(prompts)
    for request_id, prompt in prompts.items():
        rig.last(request_id)
        tokens = rig.tokens(request_id)
        assert tokens == answer(prompt, len(tokens), 3)


@pytest.mark.parametrize("max_rows", [9, 16, 40])
def test_every_token_of_a_prompt_is_scored_once_in_however_many_passes(
    new_rig: Any, answer: Answer, max_rows: int
) -> None:
    rig = new_rig(max_rows=max_rows, num_blocks=18, max_seq_len=60, max_batch_size=3)
    prompts = {name: [(7 * index + ord(name)) % 97 for index in range(25)] for name in "abc"}
    for name, prompt in prompts.items():
        rig.add(name, prompt, 20, prompt_logprobs=1 if name != "c" else None)
    rig.run()
    assert rig.core.stats().num_preemptions > 0, "a prompt that is recomputed is not scored again"
    for name, prompt in prompts.items():
        scores = [score for event in rig.events[name] for score in event.prompt_logprobs]
        assert [score.token_id for score in scores] == (prompt[1:] if name != "c" else [])
        for known, score in enumerate(scores, 1):
            (expected,) = answer(prompt[:known], 1)
            assert score.top[0][0] == expected
            assert (score.rank == 1) == (score.token_id == expected)
    assert rig.all_blocks_free


def test_who_wants_its_prompt_scored_takes_nothing_from_the_prefix_cache(rig: Any) -> None:
    prompt = list(range(20))
    for name, wish in (("first", None), ("second", None), ("scored", 0)):
        rig.add(name, prompt, 2, prompt_logprobs=wish)
        rig.run()
    assert [rig.last(name).num_cached_tokens for name in ("first", "second", "scored")] == [0, 16, 0]
    assert len([score for event in rig.events["scored"] for score in event.prompt_logprobs]) == 19


def test_salts_and_the_switch_keep_prompts_apart(new_rig: Any, answer: Answer) -> None:
    prompt = list(range(20))
    rig = new_rig()
    for name, salt in (("a", "one"), ("b", "two"), ("c", "one")):
        rig.add(name, prompt, 3, cache_salt=salt)
        rig.run()
        assert rig.tokens(name) == answer(prompt, 3)
    assert [rig.last(name).num_cached_tokens for name in "abc"] == [0, 0, 16]
    assert rig.core.stats().prefix_query_tokens == 60 and rig.core.stats().prefix_hit_tokens == 16
    assert rig.core.stats().num_cached_blocks > 0 and rig.all_blocks_free
    off = new_rig(prefix_caching=False)
    for name in "ab":
        off.add(name, prompt, 3)
        off.run()
    assert off.last("b").num_cached_tokens == 0 and off.core.stats().prefix_query_tokens == 0


def test_an_answer_continues_out_of_the_cache(rig: Any, answer: Answer) -> None:
    """As a conversation does: the next prompt is the last one, its answer, and something new."""
    prompt = list(range(10))
    rig.add("a", prompt, 12)
    rig.run()
    longer = [*prompt, *rig.tokens("a"), 5, 6]
    rig.add("b", longer, 4)
    rig.run()
    assert rig.last("b").num_cached_tokens == 20, "all full blocks of the 21 computed tokens"
    assert rig.tokens("b") == answer(longer, 4)


def test_who_lost_what_to_whom_is_logged(new_rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "aie.engine")
    rig = new_rig(num_blocks=10, max_seq_len=36)
    for index in range(4):
        rig.add(str(index), [index, 7], 30)
    rig.run()
    told = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert len(told) == rig.core.stats().num_preemptions > 1
    assert all("lost the KV blocks of" in line for line in told)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, "not one for each, in a time without end"
    assert "--kv-memory" in warnings[0]


def test_what_a_warm_up_did_is_not_counted(new_rig: Any) -> None:
    rig = new_rig(num_blocks=10, max_seq_len=36, num_words=1, speculate=4)
    for index in range(4):
        rig.add(str(index), [index, 7], 30)
    rig.run()
    rig.core.reset_counters()
    stats = rig.core.stats()
    counted = ("num_preemptions", "steps", "prefix_query_tokens", "prefix_hit_tokens", "drafted_tokens", "step_time_s")
    assert {getattr(stats, name) for name in counted} == {0}
    rig.add("r", [0, 7], 3)
    rig.run()
    assert rig.core.stats().prefix_query_tokens == 2
