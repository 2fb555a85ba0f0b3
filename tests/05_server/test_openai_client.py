"""The official client against our server: what it can parse is what its users can use."""

import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest


@pytest.fixture
def client(harness: Any) -> Iterator[openai.OpenAI]:
    server = harness.serve(api_keys=["key"])
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0, timeout=10) as made:
        yield made


MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="fake", messages=MESSAGES, logprobs=True, top_logprobs=1)
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello, wörld", "stop")
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 13
    assert completion.usage is not None and completion.usage.completion_tokens == 14


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello, wörld"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 35


def test_completions(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="fake", prompt=["a", "b"], max_tokens=5, logprobs=1)
    assert [choice.text for choice in completion.choices] == ["Hello", "Hello"]
    stream = client.completions.create(model="fake", prompt="a", stream=True, max_tokens=5)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"


def test_errors_arrive_as_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=MESSAGES, temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_sixteen_at_once(client: openai.OpenAI) -> None:
    texts: list[str | None] = []

    def ask() -> None:
        stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in stream))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["Hello, wörld"] * 16


def test_hang_up_in_mid_stream_frees_the_request(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    server = harness.serve(engine)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        threading.Thread(target=engine.emit, args=("a",)).start()
        stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        next(iter(stream))
        stream.close()
        engine.wait_for_cancel()


def test_error_in_mid_stream_raises(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    server = harness.serve(engine)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        threading.Thread(target=engine.emit, args=("a",)).start()
        stream = iter(client.chat.completions.create(model="fake", messages=MESSAGES, stream=True))
        next(stream)
        engine.emit(finish_reason="error")
        with pytest.raises(openai.APIError, match="engine failed"):
            list(stream)
