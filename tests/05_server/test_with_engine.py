"""The server on the real engine with a generated model: the seams between stage 4 and stage 5."""

import contextlib
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from aie_engine import EngineConfig, LocalEngine, load_text_model
from aie_server import ServedModel, Server
from aie_server import __main__ as demonstration

MESSAGES: Any = [{"role": "user", "content": "The scheduler takes"}]


@pytest.fixture(scope="module")
def server(tiny_gguf: Path) -> Iterator[Server]:
    engine = LocalEngine(EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=16))
    try:
        with Server([ServedModel("tiny", engine, load_text_model(tiny_gguf))], port=0) as made:
            yield made
    finally:
        engine.close()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


def wait_until_idle(server: Server) -> None:
    deadline, pause = time.monotonic() + 5, threading.Event()
    stats = server.models.default.engine.stats
    while (now := stats()).num_running or now.num_waiting or now.kv_usage:
        assert time.monotonic() < deadline, now
        pause.wait(0.005)


def test_greedy_text_is_the_same_whole_streamed_and_among_sixteen(server: Server, client: openai.OpenAI) -> None:
    def ask(texts: list[str], **fields: Any) -> None:
        answer: Any = client.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, max_tokens=12, extra_body={"ignore_eos": True}, **fields
        )
        if fields:
            texts.append("".join(chunk.choices[0].delta.content or "" for chunk in answer))
        else:
            texts.append(answer.choices[0].message.content)

    alone: list[str] = []
    ask(alone)
    together: list[str] = []
    threads = [threading.Thread(target=ask, args=(together,), kwargs={"stream": True}) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone * 16 and alone[0]
    wait_until_idle(server)


def test_stop_string_taken_from_the_text_itself(server: Server, client: openai.OpenAI) -> None:
    body = {"ignore_eos": True}
    whole = client.completions.create(model="tiny", prompt="a", temperature=0, max_tokens=40, extra_body=body)
    text = whole.choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = client.completions.create(model="tiny", prompt="a", temperature=0, max_tokens=40, stop=stop, extra_body=body)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (text[: text.index(stop)], "stop")
    wait_until_idle(server)


def test_hang_up_frees_the_blocks(server: Server, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="tiny", prompt="a", stream=True, max_tokens=200, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until_idle(server)


def test_seed_repeats_and_usage_counts(client: openai.OpenAI) -> None:
    body = {"ignore_eos": True}
    answers = [client.completions.create(model="tiny", prompt="a", seed=3, max_tokens=8, extra_body=body) for _ in "12"]
    assert answers[0].choices[0].text == answers[1].choices[0].text
    assert answers[0].usage is not None and answers[0].usage.completion_tokens == 8


def test_prompt_too_long_is_a_400_with_openais_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[1] * 5000, max_tokens=1)
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="word " * 400)
    assert caught.value.code == "context_length_exceeded"


def test_choices_with_a_seed_repeat_and_differ(server: Server, client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "prompt": "The scheduler", "max_tokens": 12, "seed": 5}
    body = {"ignore_eos": True}
    alone = client.completions.create(**fields, extra_body=body)
    several = client.completions.create(**fields, n=4, extra_body=body)
    texts = [choice.text for choice in several.choices]
    assert texts[0] == alone.choices[0].text and len(set(texts)) == 4
    assert several.usage is not None and alone.usage is not None
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens
    assert several.usage.completion_tokens == 48
    streamed = [""] * 4
    for chunk in client.completions.create(**fields, n=4, stream=True, extra_body=body):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    wait_until_idle(server)


def test_chat_choices_stream_with_their_indices(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "seed": 5, "n": 3}
    whole = client.chat.completions.create(**fields, extra_body={"ignore_eos": True})
    streamed = [""] * 3
    for chunk in client.chat.completions.create(**fields, stream=True, extra_body={"ignore_eos": True}):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in whole.choices]


def ids_of(client: openai.OpenAI, **fields: Any) -> list[str]:
    """The tokens of a greedy answer of ten, as the client sees them."""
    extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
    answer = client.completions.create(
        model="tiny", prompt="a", temperature=0, max_tokens=10, logprobs=0, extra_body=extra, **fields
    )
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.tokens is not None
    return answer.choices[0].logprobs.tokens


def test_bias_bad_words_and_allowed_tokens_decide_what_is_said(client: openai.OpenAI, tiny_gguf: Path) -> None:
    tokenizer = load_text_model(tiny_gguf).tokenizer
    plain = ids_of(client)
    forced, other = tokenizer.encode("h")[0], tokenizer.encode("q")[0]
    assert ids_of(client, logit_bias={str(forced): 100}) == [tokenizer.token_text(forced)] * 10
    allowed = ids_of(client, extra_body={"allowed_token_ids": [forced, other]})
    assert set(allowed) <= {tokenizer.token_text(forced), tokenizer.token_text(other)}
    assert tokenizer.encode("hh") == [forced, forced]
    never_twice = ids_of(client, logit_bias={str(forced): 100}, extra_body={"bad_words": ["hh"]})
    assert [token == "h" for token in never_twice] == [True, False] * 5
    assert plain == ids_of(client, logit_bias={}), "nothing asked for, nothing changed"


def test_penalties_make_an_answer_less_repetitive(client: openai.OpenAI, tiny_gguf: Path) -> None:
    bias = {str(load_text_model(tiny_gguf).tokenizer.encode("h")[0]): 12}
    assert ids_of(client, logit_bias=bias) == ["h"] * 10
    assert 1 < ids_of(client, logit_bias=bias, frequency_penalty=2.0).count("h") < 9, "each time it loses two more"
    assert ids_of(client, logit_bias=bias, extra_body={"repetition_penalty": 10.0})[:2].count("h") == 1


def test_wishes_that_leave_no_token_are_the_clients_error(
    server: Server, client: openai.OpenAI, tiny_gguf: Path
) -> None:
    only = {"allowed_token_ids": load_text_model(tiny_gguf).tokenizer.encode("h"), "bad_words": ["hh"]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", extra_body=only)
    assert caught.value.code == "no_token_allowed"
    with pytest.raises(openai.APIError, match="leaves no token"):  # as an event, or at once where one step was as fast
        list(client.completions.create(model="tiny", prompt="a", stream=True, extra_body=only))
    wait_until_idle(server)


def test_echo_scores_a_text_as_generating_it_did(client: openai.OpenAI, tiny_gguf: Path) -> None:
    """The log-probabilities of a prompt, computed in one go, are those of its tokens when they were sampled."""
    tokenizer = load_text_model(tiny_gguf).tokenizer
    prompt = tokenizer.encode("The scheduler takes")
    fields: Any = {"model": "tiny", "temperature": 0, "logprobs": 2, "extra_body": {"ignore_eos": True}}
    sampled = client.completions.create(prompt=prompt, max_tokens=20, **fields).choices[0]
    assert sampled.logprobs is not None and sampled.logprobs.token_logprobs is not None
    echoed = client.completions.create(prompt=prompt, max_tokens=20, echo=True, **fields).choices[0]
    assert echoed.text == tokenizer.decode(prompt) + sampled.text
    scores = echoed.logprobs
    assert scores is not None and scores.token_logprobs is not None and scores.text_offset is not None
    assert scores.token_logprobs[0] is None and len(scores.token_logprobs) == len(prompt) + 20
    assert scores.token_logprobs[len(prompt) :] == pytest.approx(sampled.logprobs.token_logprobs, abs=1e-4)
    answer = tokenizer.encode(sampled.text)
    again = client.completions.create(prompt=[*prompt, *answer], max_tokens=0, echo=True, **fields).choices[0].logprobs
    assert len(answer) == 20, "the text of this model's answer has the tokens that it was made of"
    assert again is not None and again.token_logprobs is not None
    assert again.token_logprobs[len(prompt) :] == pytest.approx(sampled.logprobs.token_logprobs, abs=1e-4)


def test_prompt_scores_are_the_same_in_any_chunks_and_with_a_hot_cache(tiny_gguf: Path) -> None:
    text = load_text_model(tiny_gguf)
    prompt = text.tokenizer.encode("The scheduler takes what it can and leaves the rest where it is. " * 2)[:60]
    found: list[list[float]] = []
    for max_batch_tokens in (8, 64):
        engine = LocalEngine(
            EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=4, max_batch_tokens=max_batch_tokens)
        )
        with (
            Server([ServedModel("tiny", engine, text)], port=0) as server,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client,
        ):
            for _ in range(2):
                answer: Any = client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=1, extra_body={"prompt_logprobs": 1}
                )
                first, *rest = answer.choices[0].prompt_logprobs
                assert first is None
                found.append([rest[i][str(token)]["logprob"] for i, token in enumerate(prompt[1:])])
        engine.close()
    for scores in found[1:]:
        assert scores == pytest.approx(found[0], abs=1e-4)


def test_demonstration(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "demo_model", lambda _: (tiny_gguf, "a tiny random Llama"))
    before = set(threading.enumerate())
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert demonstration.main(["--max-tokens", "8"]) == 0
    text = printed.getvalue()
    assert "← HTTP/1.1 200 OK" in text and "data: [DONE]" in text
    assert "← HTTP/1.1 400 Bad Request" in text and json.dumps("temperature") in text
    assert 'aie_requests_total{route="/v1/chat/completions",status="400"} 1' in text
    assert set(threading.enumerate()) <= before


def test_example_of_the_readme(tiny_gguf: Path) -> None:
    readme = Path(__file__).parents[2] / "stages" / "05_server" / "README.md"
    example = readme.read_text("utf-8").split("```python\n")[1].split("```")[0]
    assert "model.gguf" in example
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(example.replace("model.gguf", str(tiny_gguf)), {})
    assert printed.getvalue()
