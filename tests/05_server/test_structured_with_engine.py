"""Forms and tools on the real engine with a generated model, which knows nothing of JSON: what is right about its
answers is the constraint's doing alone."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from aie_engine import EngineConfig, LocalEngine, load_text_model
from aie_loader import ChatTemplate
from aie_server import ServedModel, Server

pytest.importorskip("llguidance", reason="needs llguidance (pip install -e '.[structured]')")

MESSAGES: Any = [{"role": "user", "content": "The scheduler takes"}]
PERSON: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "grün"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
# Spaces may stand between any two parts, and a model of random numbers would put some there without end.
TIGHT: Any = {**PERSON, "x-guidance": {"whitespace_flexible": False}}
# The model's own template knows no tools, and its context is too short for a prompt that explains them.
TEMPLATE = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}"
TOOLS: Any = [
    {"type": "function", "function": {"name": "add", "parameters": {**TIGHT, "title": "A person"}}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="module")
def server(tiny_gguf: Path) -> Iterator[Server]:
    # room for about two answers at a time, so that requests of a dozen preempt each other
    config = EngineConfig(tiny_gguf, kernels="numpy", max_batch_size=8, kv_memory_bytes=1 << 18, speculate=4)
    engine = LocalEngine(config)
    try:
        text = replace(load_text_model(tiny_gguf), chat_template=ChatTemplate(TEMPLATE))
        with Server([ServedModel("tiny", engine, text)], port=0) as made:
            yield made
    finally:
        engine.close()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def is_person(text: str | None) -> bool:
    value = json.loads(text or "")
    assert set(value) == {"name", "age", "tags"} and len(value["name"]) <= 8, value
    assert type(value["age"]) is int and 0 <= value["age"] <= 150 and set(value["tags"]) <= {"red", "grün"}, value
    return True


def person_format(schema: Any = TIGHT) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}


@pytest.mark.parametrize("seed", range(6))
def test_any_seed_gives_json_of_the_schema(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=seed, max_tokens=150, temperature=1.5, response_format=person_format()
    )
    assert answer.choices[0].finish_reason == "stop"
    assert is_person(answer.choices[0].message.content)


def test_the_clients_own_parser(client: openai.OpenAI) -> None:
    class Person(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(json_schema_extra={"x-guidance": {"whitespace_flexible": False}})
        name: str = pydantic.Field(max_length=5)
        age: int = pydantic.Field(ge=0, le=9)

    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, seed=3, max_tokens=150, response_format=Person
    )
    assert answer.choices[0].message.parsed is not None


def test_regex_choice_and_grammar(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> str:
        answer = client.completions.create(
            model="tiny", prompt="The queue", seed=1, max_tokens=100, extra_body=fields, temperature=1
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].text

    assert re.fullmatch(r"(the|a) [a-z]{2,6}\.", ask(guided_regex=r"(the|a) [a-z]{2,6}\."))
    assert ask(structured_outputs={"choice": ["yes", "no ☃", "perhaps"]}) in ("yes", "no ☃", "perhaps")
    assert re.fullmatch(r"(ab|c){2,4};", ask(guided_grammar='start: ("ab" | "c"){2,4} ";"'))


def test_the_same_seed_gives_the_same_text_alone_streamed_and_in_a_crowd(server: Server, client: openai.OpenAI) -> None:
    """In the crowd there is not enough KV memory for all, so most of them are preempted at some time."""
    fields: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 200, "temperature": 1.2}

    def whole(seed: int) -> str:
        answer = client.chat.completions.create(**fields, seed=seed, response_format=person_format(PERSON))
        return answer.choices[0].message.content or ""

    def streamed(seed: int) -> str:
        stream = client.chat.completions.create(**fields, seed=seed, response_format=person_format(PERSON), stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    def filler(seed: int) -> str:
        answer = client.completions.create(
            model="tiny", prompt="The queue", seed=seed, max_tokens=250, extra_body={"ignore_eos": True}
        )
        return answer.choices[0].text

    alone = [whole(seed) for seed in range(3)]
    engine = server.models.default.engine
    preempted = engine.stats().num_preemptions
    found: dict[tuple[str, int], str] = {}

    def run(kind: Callable[[int], str], seed: int) -> None:
        found[kind.__name__, seed] = kind(seed)

    threads = [
        threading.Thread(target=run, args=(kind, seed)) for kind in (whole, streamed, filler) for seed in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found["whole", seed] for seed in range(3)] == alone
    assert [found["streamed", seed] for seed in range(3)] == alone
    assert engine.stats().num_preemptions > preempted


def test_several_choices_each_in_the_form(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=4, seed=5, max_tokens=150, response_format=person_format()
    )
    assert len(answer.choices) == 4
    assert all(is_person(choice.message.content) for choice in answer.choices)


def test_tokens_that_run_out_cut_the_json_and_say_so(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=0, max_tokens=3, response_format=person_format()
    )
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.choices[0].message.content or "")


def test_a_stop_string_ends_it_too(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=0, max_tokens=150, stop='"age"', response_format=person_format()
    )
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.choices[0].message.content or "").startswith('{"name":')
    assert "age" not in (answer.choices[0].message.content or "")


def test_penalties_and_logprobs_beside_a_form(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=2, max_tokens=150, response_format=person_format(), logprobs=True,
        frequency_penalty=1.5, extra_body={"repetition_penalty": 1.2, "min_tokens": 5},
    )  # fmt: skip
    assert is_person(answer.choices[0].message.content)
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    assert "".join(token.token for token in answer.choices[0].logprobs.content) == answer.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_compile_is_refused_while_others_go_on(client: openai.OpenAI, stream: bool) -> None:
    answers: list[Any] = []

    def other() -> None:
        answers.append(client.completions.create(model="tiny", prompt="The queue", max_tokens=60, temperature=0))

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=stream, response_format=person_format({"type": "nothing"})
        )
    thread.join()
    assert caught.value.param == "response_format.json_schema.schema"
    assert caught.value.code == "invalid_constraint"
    assert answers[0].choices[0].text


@pytest.mark.parametrize("seed", range(3))
def test_a_required_tool_is_called_with_arguments_of_its_schema(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=200,
        parallel_tool_calls=False,
    )  # fmt: skip
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (
        json.loads(call.function.arguments) == {} if call.function.name == "now" else is_person(call.function.arguments)
    )


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_are_cut_are_cut(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, seed=4, max_tokens=60, stream=stream,
        tool_choice={"type": "function", "function": {"name": "add"}},
    )  # fmt: skip
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        functions = [part.function for chunk in chunks for part in chunk.delta.tool_calls or []]
        arguments, reason = "".join(function.arguments for function in functions), chunks[-1].finish_reason
    else:
        arguments = answer.choices[0].message.tool_calls[0].function.arguments
        reason = answer.choices[0].finish_reason
    assert reason == "length"
    assert arguments.startswith('{"name"')
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)


def test_the_named_tool_is_called_in_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, seed=4, max_tokens=180, stream=True,
        tool_choice={"type": "function", "function": {"name": "add"}},
    )  # fmt: skip
    chunks = [chunk.choices[0] for chunk in stream]
    parts = [part.function for chunk in chunks for part in chunk.delta.tool_calls or []]
    assert parts[0] is not None and parts[0].name == "add"
    assert len(parts) > 5, "arguments come as they are written"
    assert is_person("".join(part.arguments or "" for part in parts if part is not None))
    assert chunks[-1].finish_reason == "tool_calls"
    assert not any(chunk.delta.content for chunk in chunks)
