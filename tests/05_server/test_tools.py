"""Tools over HTTP: what is offered to the template, what comes back as calls, what is refused."""

import json
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aie_engine import AieError
from aie_loader import ChatTemplate
from aie_server.api.fields import Fields
from aie_server.api.prompts import chat_prompt
from aie_server.api.structured import parse_form
from aie_server.api.tools import parse_tools
from aie_server.config import ServerConfig

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ADD: Any = {"type": "function", "function": {"name": "add"}}
TOOLS: Any = [WEATHER, ADD]
MESSAGES: Any = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
PLAIN = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '|' }}{% endfor %}"
KNOWING = (
    "{% for tool in tools or [] %}{{ tool.function.name }},{% endfor %}{% for m in messages %}{{ m.role }}:"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ m.tool_call_id or '' }}|{% endfor %}"
)


@pytest.fixture
def client(harness: Any) -> Any:
    harness.text.chat_template = ChatTemplate(KNOWING)
    with openai.OpenAI(base_url=f"{harness.serve().url}/v1", api_key="none", max_retries=0, timeout=10) as made:
        yield made


def prompt(harness: Any) -> str:
    return bytes(harness.engine.requests[-1].prompt_ids).decode()


# Answers


def test_a_call_in_a_whole_answer(harness: Any, client: openai.OpenAI, script: Any) -> None:
    harness.engine.script = script(CALL)
    choice = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_")
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Köln"})
    assert prompt(harness).startswith("weather,add,user:hi|")
    assert harness.engine.requests[-1].constraint is None


def test_calls_in_a_stream(harness: Any, client: openai.OpenAI, script: Any) -> None:
    harness.engine.script = script(f"Let me see. {CALL}\n{CALL}")
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    text, names, arguments, ids, reasons = "", {}, {}, set(), []
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for part in choice.delta.tool_calls or []:
                assert part.function is not None
                if part.id:
                    ids.add(part.id)
                    names[part.index] = part.function.name
                assert part.index in names, "arguments came before the name"
                arguments[part.index] = arguments.get(part.index, "") + (part.function.arguments or "")
    assert (text, names, reasons) == ("Let me see.", {0: "weather", 1: "weather"}, ["tool_calls"])
    assert [json.loads(value) for value in arguments.values()] == [{"city": "Köln"}] * 2
    assert len(ids) == 2


def test_the_clients_own_helper_collects_a_stream(harness: Any, client: openai.OpenAI, script: Any) -> None:
    harness.engine.script = script(CALL)
    with client.chat.completions.stream(model="fake", messages=MESSAGES, tools=TOOLS) as stream:
        completion = stream.get_final_completion()
    (call,) = completion.choices[0].message.tool_calls or []
    assert call.function.arguments == '{"city":"Köln"}'


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_answers_has_its_own_calls(harness: Any, client: Any, script: Any, stream: bool) -> None:
    harness.engine.script = script(f"{CALL}\n{CALL}")
    answer = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS, n=2, stream=stream)
    calls: dict[tuple[int, int], str] = {}
    for choice in [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices:
        for number, part in enumerate((choice.delta if stream else choice.message).tool_calls or []):
            key = choice.index, part.index if stream else number
            calls[key] = calls.get(key, "") + part.function.arguments
    assert calls == dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)], '{"city":"Köln"}')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "text",
    ["Just words.", "<tool_call>{broken", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "a <tool"],
)
def test_what_is_no_call_is_words(harness: Any, client: openai.OpenAI, script: Any, text: str, stream: bool) -> None:
    harness.engine.script = script(text)
    answer: Any = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        assert not any(choice.delta.tool_calls for choice in chunks)
        found, reason = "".join(choice.delta.content or "" for choice in chunks), chunks[-1].finish_reason
    else:
        found, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert answer.choices[0].message.tool_calls is None
    assert (found, reason) == (text, "stop")


def test_a_call_that_was_cut_off_is_words_and_says_so(harness: Any, client: openai.OpenAI, script: Any) -> None:
    harness.engine.script = script(CALL)
    answer = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS, max_tokens=30)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == CALL[:30]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("cut", "reason", "arguments"),
    [
        ({"stop": ["Kö"]}, "stop", '{"city": "'),  # nobody could make this call
        ({"max_tokens": 45}, "length", None),
        ({"max_tokens": 5}, "length", None),  # before any function's name: the grammar's marks are no words
    ],
)
def test_a_forced_call_that_was_cut_off_says_so(
    harness: Any, client: openai.OpenAI, script: Any, cut: dict[str, Any], reason: str, arguments: str | None,
    is_streamed: bool,
) -> None:  # fmt: skip
    harness.engine.script = script(CALL)
    wish: dict[str, Any] = {"model": "fake", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", **cut}
    if is_streamed:
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(**wish, stream=True)]
        found = [choice.finish_reason for choice in choices if choice.finish_reason]
        text = "".join(choice.delta.content or "" for choice in choices)
        calls = [call for choice in choices for call in choice.delta.tool_calls or []]
        said = "".join(call.function.arguments or "" for call in calls if call.function is not None)
    else:
        choice = client.chat.completions.create(**wish).choices[0]
        found, text, calls = [choice.finish_reason], choice.message.content or "", choice.message.tool_calls or []
        said = "".join(call.function.arguments for call in calls)
    assert (found, text) == ([reason], "")
    assert bool(calls) == (cut.get("max_tokens") != 5)
    assert arguments is None or said == arguments


def test_without_tools_nothing_is_looked_for(harness: Any, client: openai.OpenAI, script: Any) -> None:
    harness.engine.script = script(CALL)
    plain = client.chat.completions.create(model="fake", messages=MESSAGES)
    none = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS, tool_choice="none")
    assert plain.choices[0].message.content == none.choices[0].message.content == CALL
    assert prompt(harness).startswith("user:hi|")


def test_one_at_a_time(harness: Any, client: openai.OpenAI, script: Any) -> None:
    harness.engine.script = script(f"{CALL}\n{CALL}")
    answer = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls or []) == 1


def test_logprobs_beside_calls(harness: Any, script: Any) -> None:
    harness.engine.script = script(CALL)
    harness.text.chat_template = ChatTemplate(KNOWING)
    whole = harness.chat(tools=TOOLS, logprobs=True).json["choices"][0]
    num_bytes = len(CALL.encode())
    assert len(whole["logprobs"]["content"]) == num_bytes
    events = harness.chat(tools=TOOLS, logprobs=True, stream=True).events[:-1]
    scored = [token for event in events for token in (event["choices"][0]["logprobs"] or {}).get("content", [])]
    assert len(scored) == num_bytes


# Messages


HISTORY: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
            {"id": "c2", "type": "function", "function": {"name": "add", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "3"}]},
]


def test_messages_reach_a_template_that_knows_tools_as_they_are(harness: Any) -> None:
    harness.text.chat_template = ChatTemplate(KNOWING)
    assert harness.post("/v1/chat/completions", {"messages": HISTORY, "tools": TOOLS}).status == 200
    assert prompt(harness) == (
        'weather,add,system:Be brief.|user:hi|assistant:<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}'
        '</tool_call><tool_call>{"name": "add", "arguments": {}}</tool_call>|tool:rainc1|tool:3c2|'
    )


def test_a_template_that_knows_no_tools_gets_them_as_words(harness: Any) -> None:
    harness.engine.info = type(harness.engine.info)(**{
        **{field: getattr(harness.engine.info, field) for field in harness.engine.info.__struct_fields__},
        "max_seq_len": 4096,
    })  # fmt: skip
    harness.text.chat_template = ChatTemplate(PLAIN)
    assert harness.post("/v1/chat/completions", {"messages": HISTORY, "tools": TOOLS}).status == 200
    system, user, assistant, results, end = prompt(harness).split("|")
    assert system.startswith("system:Be brief.\n\nYou may call functions.")
    assert json.dumps(WEATHER) in system and json.dumps(ADD) in system
    assert user == "user:hi"
    assert assistant == (
        'assistant:<tool_call>[{"name": "weather", "arguments": {"city": "Bonn"}}, '
        '{"name": "add", "arguments": {}}]</tool_call>'
    )
    assert results == "user:<tool_response>rain</tool_response>\n<tool_response>3</tool_response>"
    assert end == ""
    # What the prompt asks for is what is found in the answer.
    assert harness.post("/v1/chat/completions", {"messages": HISTORY}).status == 200  # no tools are offered any more
    assert prompt(harness).startswith("system:Be brief.|user:hi|assistant:<tool_call>")


def test_the_prompted_form_is_found(harness: Any, script: Any, make_engine: Any) -> None:
    harness.text.chat_template = ChatTemplate(PLAIN)
    answer = (
        '<tool_call>[{"name": "add", "arguments": {}}, {"name": "weather", "arguments": {"city": "x"}}]</tool_call>'
    )
    harness.serve(make_engine(script(answer), max_seq_len=4096))
    choice = harness.chat(tools=TOOLS).json["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add", "weather"]
    assert choice["finish_reason"] == "tool_calls"


def test_tokenize_counts_tools_too(harness: Any) -> None:
    harness.text.chat_template = ChatTemplate(KNOWING)
    body = {"messages": MESSAGES, "tools": TOOLS}
    assert harness.post("/tokenize", body).json["count"] == len("weather,add,user:hi|")


# What is refused


def tool(**function: object) -> list[object]:
    return [{"type": "function", "function": {"name": "f", **function}}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": "f"}, "tools"),
        ({"tools": [ADD] * 1000}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": tool(name=None)}, "tools[0].function.name"),
        ({"tools": tool(name="")}, "tools[0].function.name"),
        ({"tools": tool(name='a"b')}, "tools[0].function.name"),
        ({"tools": tool(name="n" * 129)}, "tools[0].function.name"),
        ({"tools": tool(description=5)}, "tools[0].function.description"),
        ({"tools": tool(parameters=[])}, "tools[0].function.parameters"),
        ({"tools": tool(parameters="{}")}, "tools[0].function.parameters"),
        ({"tools": tool(parameters={"type": "string"})}, "tools[0].function.parameters"),
        ({"tools": tool(strict="yes")}, "tools[0].function.strict"),
        ({"tools": [ADD, WEATHER, ADD]}, "tools[2].function.name"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 1}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": []}}, "tool_choice.function"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex"),
    ],
)
def test_bad_tools_name_the_field(harness: Any, fields: dict[str, object], param: str) -> None:
    answer = harness.chat(**fields)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert not harness.engine.requests


def call(**parts: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", **parts}]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ({"role": "tool", "tool_call_id": "c"}, "messages[0].content"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[0].role"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [1]}, "messages[0].tool_calls[0]"),
        (call(), "messages[0].tool_calls[0].function"),
        (call(type="custom", function={"name": "f"}), "messages[0].tool_calls[0].function"),
        (call(function={}), "messages[0].tool_calls[0].function.name"),
        (call(function={"name": 5}), "messages[0].tool_calls[0].function.name"),
        (call(function={"name": "f", "arguments": []}), "messages[0].tool_calls[0].function.arguments"),
    ],
)
def test_bad_messages_name_the_field(harness: Any, message: object, param: str) -> None:
    answer = harness.post("/v1/chat/completions", {"messages": [message]})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert not harness.engine.requests


def test_arguments_that_are_no_json_are_kept_as_they_are(harness: Any) -> None:
    harness.text.chat_template = ChatTemplate(KNOWING)
    message = call(function={"name": "f", "arguments": "{broken"})
    assert harness.post("/v1/chat/completions", {"messages": [message]}).status == 200
    assert '"arguments": "{broken"' in prompt(harness)


def nested(depth: int) -> Any:
    schema: Any = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize("source", [PLAIN, KNOWING])
@pytest.mark.parametrize("depth", [20, 40, 200, 450])
def test_deep_schemas_are_a_clients_error_at_worst(harness: Any, source: str, depth: int) -> None:
    harness.text.chat_template = ChatTemplate(source)
    for fields in ({"tools": tool(parameters=nested(depth))}, {"guided_json": nested(depth)}):
        for choice in ("auto", "required"):
            answer = harness.chat(**fields, **({"tool_choice": choice} if "tools" in fields else {}))
            assert answer.status in (200, 400), answer.body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "function", "auto", "required", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from([
            "type", "function", "name", "parameters", "strict", "description", "json_schema", "schema", "json", "regex",
            "choice", "grammar", "json_object", "id", "arguments", "role", "content", "tool_calls", "tool_call_id",
        ]),
        inner, max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs",
                         "guided_json", "guided_regex", "guided_choice", "guided_grammar"]),
        JSON, max_size=3,
    ),
    JSON,
)  # fmt: skip
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_these_fields_hold_is_taken_or_refused(
    harness: Any, fields: dict[str, object], message: object
) -> None:
    request = Fields({**fields, "messages": [message]})
    model: Any = SimpleNamespace(name="fake", text=harness.text, max_seq_len=10_000, longest_token_bytes=20)
    try:
        form = parse_form(request, ServerConfig())
        tools = parse_tools(request, ServerConfig(), harness.text.chat_template)
        if tools is not None:
            tools.constraint(form, harness.text.tokenizer, ServerConfig())
        chat_prompt(request, model, ServerConfig(), tools)
    except AieError as error:
        assert error.status in (400, 501), error
