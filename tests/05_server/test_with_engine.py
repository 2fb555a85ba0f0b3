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
