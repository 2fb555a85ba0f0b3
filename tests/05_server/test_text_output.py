"""Token events to text: characters cut in half, stop tokens, log-probabilities in step with held-back text."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aie_engine import TokenEvent, TokenLogprobs
from aie_server.text_output import OutputOptions, TextOutput


def event(tokens: bytes | tuple[int, ...], **kwargs: Any) -> TokenEvent:
    ids = tuple(tokens)
    return TokenEvent("r", ids, tuple(TokenLogprobs(token, -1.0) for token in ids), **kwargs)


def test_half_characters_wait_for_their_other_half(tokenizer: Any) -> None:
    output = TextOutput(tokenizer, OutputOptions())
    data = "aé€😀".encode()
    texts = [output.push(event(data[i : i + 1])).text for i in range(len(data))]
    assert "".join(texts) == "aé€😀"
    assert "�" not in "".join(texts)
    assert output.num_tokens == len(data)


def test_unfinished_character_becomes_a_replacement_at_the_end(tokenizer: Any) -> None:
    output = TextOutput(tokenizer, OutputOptions())
    assert output.push(event("é".encode()[:1], finish_reason="length")).text == "�"


@pytest.mark.parametrize("skip", [True, False])
def test_token_that_ends_the_generation_is_counted_but_not_shown(tokenizer: Any, skip: bool) -> None:
    output = TextOutput(tokenizer, OutputOptions(skip_special_tokens=skip))
    delta = output.push(event((104, 257, 105, 256), finish_reason="stop", stop_token_id=256))
    assert delta.text == ("hi" if skip else "h<turn>i")
    assert (delta.finish_reason, output.num_tokens) == ("stop", 4)


def test_stop_string_ends_before_the_engine_knows(tokenizer: Any) -> None:
    output = TextOutput(tokenizer, OutputOptions(stop=("END",)))
    assert [output.push(event(piece)).text for piece in (b"ab", b"cE", b"N")] == ["ab", "c", ""]
    delta = output.push(event(b"Dzz"))
    assert (delta.text, delta.finish_reason) == ("", "stop")


def test_text_held_back_is_shown_when_the_answer_ends_by_itself(tokenizer: Any) -> None:
    output = TextOutput(tokenizer, OutputOptions(stop=("END",)))
    assert output.push(event(b"xEN")).text == "x"
    assert output.push(event((256,), finish_reason="stop", stop_token_id=256)).text == "EN"


def test_logprobs_come_with_their_text_and_not_for_a_stop_string(tokenizer: Any) -> None:
    output = TextOutput(tokenizer, OutputOptions(stop=("END",), with_logprobs=True))
    first = output.push(event(b"aEN"))
    assert [(item.scores.token_id, item.offset) for item in first.scored] == [(ord("a"), 0)]
    second = output.push(event(b"b"))  # no END after all: E, N and b are text
    assert [item.offset for item in second.scored] == [1, 2, 3]
    last = output.push(event(b"END"))
    assert (last.scored, last.finish_reason) == ([], "stop")


def test_logprobs_of_the_ending_token_are_left_out(tokenizer: Any) -> None:
    output = TextOutput(tokenizer, OutputOptions(with_logprobs=True))
    delta = output.push(event((104, 256), finish_reason="stop", stop_token_id=256))
    assert [item.scores.token_id for item in delta.scored] == [104]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a tokenizer remembers nothing
@given(
    prompt=st.text("ab", min_size=1, max_size=5),
    answer=st.text("ab", max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=3), max_size=2).map(tuple),
    min_tokens=st.integers(0, 14),
    cuts=st.lists(st.integers(0, 12), max_size=4),
    echo=st.booleans(),
    with_logprobs=st.booleans(),
)
def test_any_cut_into_events_gives_the_same_text(
    tokenizer: Any, prompt: str, answer: str, stops: tuple[str, ...], min_tokens: int, cuts: list[int], echo: bool,
    with_logprobs: bool,
) -> None:  # fmt: skip
    """One token per character: the prompt, what comes before min_tokens, and the rest up to the first stop string."""
    options = OutputOptions(
        stop=stops, echo=echo, with_logprobs=with_logprobs, min_tokens=min_tokens, with_token_ids=True
    )
    output = TextOutput(tokenizer, options, tuple(prompt.encode()))
    scores = tuple(TokenLogprobs(token, -2.0) for token in prompt.encode()[1:])
    deltas = [output.push(TokenEvent("r", prompt_logprobs=scores if with_logprobs else ()))]
    bounds = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    for begin, end in pairwise(bounds):
        if deltas[-1].finish_reason is None:
            reason: Any = "length" if end == len(answer) else None
            deltas.append(output.push(event(answer[begin:end].encode(), finish_reason=reason)))
    free, rest = answer[:min_tokens], answer[min_tokens:]
    ends = [(rest.index(stop) + len(stop), -len(stop)) for stop in stops if stop in rest]
    expected = free + (rest[: sum(min(ends))] if ends else rest)
    assert "".join(delta.text for delta in deltas) == (prompt if echo else "") + expected
    last = [delta.finish_reason for delta in deltas if delta.finish_reason is not None]
    assert last == ["stop" if ends else "length"]
    num_tokens = len(free) + (min(ends)[0] if ends else len(rest))  # the stop string's own are counted
    assert output.num_tokens == num_tokens
    assert bytes(token for delta in deltas for token in delta.token_ids) == answer[:num_tokens].encode()
    if with_logprobs:
        scored = [item for delta in deltas for item in delta.scored]
        assert [chr(item.scores.token_id) for item in scored] == list((prompt if echo else "") + expected)
        assert [item.offset for item in scored] == list(range(len(scored)))
        assert [item.has_chance for item in scored] == [not (echo and i == 0) for i in range(len(scored))]
