"""Token streams: order, merging, time-outs, and threads."""

import threading

import pytest

from aie_engine import ErrorInfo, TokenEvent, TokenLogprobs, TokenStream


def stream() -> tuple[TokenStream, list[str]]:
    cancelled: list[str] = []
    return TokenStream("r", cancelled.append), cancelled


def test_what_was_queued_comes_as_one_event() -> None:
    tokens, _ = stream()
    tokens.put(TokenEvent("r", (1,), (TokenLogprobs(1, -0.5),), num_prompt_tokens=4))
    tokens.put(TokenEvent("r", (2,), (TokenLogprobs(2, -0.25),), num_prompt_tokens=4))
    assert tokens.get() == TokenEvent(
        "r", (1, 2), (TokenLogprobs(1, -0.5), TokenLogprobs(2, -0.25)), num_prompt_tokens=4
    )
    tokens.put(TokenEvent("r", (3,), num_prompt_tokens=4))
    tokens.put(TokenEvent("r", (7,), (), "stop", 7, num_prompt_tokens=4))
    assert tokens.get() == TokenEvent("r", (3, 7), (), "stop", 7, num_prompt_tokens=4)
    assert tokens.finished


def test_an_error_keeps_the_tokens_before_it() -> None:
    tokens, _ = stream()
    error = ErrorInfo("engine_died", "gone", 503, 1.0)
    tokens.put(TokenEvent("r", (1,), num_prompt_tokens=2))
    tokens.put(TokenEvent("r", finish_reason="error", error=error))
    event = tokens.get()
    assert (event.token_ids, event.finish_reason, event.error) == ((1,), "error", error)
    assert event.num_prompt_tokens == 2


def test_waiting_has_an_end() -> None:
    tokens, _ = stream()
    with pytest.raises(TimeoutError, match="token of request r"):
        tokens.get(timeout_s=0)
    tokens.put(TokenEvent("r", (1,)))
    assert tokens.get(timeout_s=0).token_ids == (1,)


def test_iterating_ends_with_the_last_event() -> None:
    tokens, _ = stream()

    def produce() -> None:
        for token in range(200):
            tokens.put(TokenEvent("r", (token,)))
        tokens.put(TokenEvent("r", finish_reason="length"))

    thread = threading.Thread(target=produce)
    thread.start()
    assert [token for event in tokens for token in event.token_ids] == list(range(200))
    thread.join()


def test_leaving_early_cancels_and_leaving_late_does_not() -> None:
    tokens, cancelled = stream()
    with tokens:
        pass
    assert cancelled == ["r"]
    tokens, cancelled = stream()
    with tokens:
        tokens.put(TokenEvent("r", finish_reason="length"))
        tokens.get()
    assert cancelled == []
