"""Formats of tool calls, as families of models write them: found by the template, written by a grammar, read back."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from aie_engine import load_text_model
from aie_loader import ChatTemplate
from aie_server.api.fields import Fields
from aie_server.api.structured import parse_form
from aie_server.api.tool_calls import Call, More, Piece
from aie_server.api.tool_formats import Function, ToolFormat, find_format
from aie_server.api.tool_messages import without_tools
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
PLAIN = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '|' }}{% endfor %}"
KNOWING = (
    "{% for tool in tools or [] %}{{ tool.function.name }},{% endfor %}{% for m in messages %}{{ m.role }}:"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ m.tool_call_id or '' }}|{% endfor %}"
)


def merged(pieces: Iterable[Piece]) -> list[Call]:
    """The calls among pieces, each with all of its arguments."""
    calls: list[Call] = []
    for piece in pieces:
        if isinstance(piece, Call):
            calls.append(piece)
        elif isinstance(piece, More):
            calls[-1] = Call(calls[-1].name, calls[-1].arguments + piece.arguments)
    return calls


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (PLAIN, "prompted"),
        (KNOWING, "hermes"),
        ("{% for tool in tools %}{% endfor %}", "hermes"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ('{% if tools %}{"name": function name, "parameters": dictionary of arguments}{% endif %}', "llama"),
        ({"default": PLAIN, "tool_use": KNOWING}, "hermes"),
    ],
)
def test_the_format_is_the_templates(source: Any, name: str) -> None:
    assert find_format(ChatTemplate(source)).name == name


@pytest.mark.parametrize(("file", "name"), [("chatml", "hermes"), ("dated", "llama"), ("alternating", "prompted")])
def test_the_format_of_templates_as_families_write_them(file: str, name: str) -> None:
    path = Path(__file__).parents[1] / "02_loader" / "chat_templates" / f"{file}.jinja"
    template = ChatTemplate(path.read_text("utf-8"))
    assert find_format(template).name == name
    # What it writes of a call that was made is what is looked for in an answer.
    made: Any = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    messages: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [made]}]
    if name == "prompted":
        messages = without_tools(messages, [])
    text = template.render(messages, tools=None if name == "prompted" else TOOLS, add_generation_prompt=False)
    answer = text[text.rindex("<tool_call>" if name != "llama" else '{"name"') :]
    for end in ("<|im_end|>", "<|eot_id|>"):
        answer = answer.split(end)[0]
    use = parse_tools(Fields({"tools": TOOLS}), ServerConfig(), template)
    assert use is not None
    reader = use.reader()
    assert [*reader.push(answer), *reader.finish()] == [Call("weather", '{"city":"Bonn"}')]


@pytest.mark.parametrize("source", [PLAIN, KNOWING, "{% if tools %}[TOOL_CALLS]{% endif %}",
                                    '{% if tools %}"parameters": dictionary{% endif %}'])  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"tool_choice": "required"}, 1),
        ({"tool_choice": "required", "parallel_tool_calls": False}, 1),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, 1),
        ({"response_format": {"type": "json_object"}}, 2),
        ({}, 2),
    ],
)
def test_every_grammar_writes_what_its_reader_reads(
    tiny_model: Any, source: str, fields: dict[str, object], texts: int
) -> None:
    """Random texts of each grammar, through the reader of the same format."""
    pytest.importorskip("llguidance", reason="needs llguidance (pip install -e '.[structured]')")
    import numpy as np

    from aie_engine.constraints import ConstraintMaker

    text = load_text_model(tiny_model)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True, "parameters": {
        "type": "object", "additionalProperties": False, "required": ["city"],
        "properties": {"city": {"$ref": "#/$defs/City"}}, "$defs": {"City": {"enum": ["Köln", "Bonn"]}},
    }}}  # fmt: skip
    request = Fields({"tools": [ADD, strict], **fields})
    use = parse_tools(request, ServerConfig(), ChatTemplate(source))
    assert use is not None
    spec = use.constraint(parse_form(request, ServerConfig()), text.tokenizer, ServerConfig())
    assert spec is not None
    maker = ConstraintMaker(text.tokenizer, vocab_size=text.tokenizer.vocab_size, eos_token_ids=(2,))
    rng = np.random.default_rng(1)
    num_calls = num_texts = 0
    opening = use.format.opening or '{"name'
    for number in range(24):
        constraint = maker.make(spec)
        ids: list[int] = []
        forced = text.tokenizer.encode(opening) if number % 2 and texts == 2 else []
        while not constraint.is_done and len(ids) < 300:
            bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits)
            token = forced.pop(0) if forced else 2 if 2 in allowed and rng.random() < 0.7 else int(rng.choice(allowed))
            assert bits[token], "the beginning of a call must be allowed"
            if token == 2:
                break
            ids.append(token)
            constraint.accept(token)
        else:
            if not constraint.is_done:
                continue
        found = text.tokenizer.decode(ids)
        reader = use.reader()
        pieces = reader.push(found) + reader.finish()
        calls = merged(pieces)
        if calls:
            num_calls += 1
            for made in calls:
                arguments = json.loads(made.arguments)
                assert (made.name, arguments) in [
                    ("add", {}),
                    ("weather", {"city": "Köln"}),
                    ("weather", {"city": "Bonn"}),
                ]
            assert len(calls) == 1 or use.several
            if "tool_choice" in fields:
                assert not any(isinstance(piece, str) for piece in pieces), "a forced answer has no words"
        else:
            assert "tool_choice" not in fields, found
            num_texts += 1
            if "response_format" in fields:
                assert isinstance(json.loads(found), dict)
    assert num_calls >= 6
    assert texts == 1 or num_texts >= 1


def test_marks_that_are_control_tokens_are_written_as_such(tiny_model: Any) -> None:
    """Mistral's `[TOOL_CALLS]` is one; here, the start of a turn stands in for it."""
    pytest.importorskip("llguidance", reason="needs llguidance (pip install -e '.[structured]')")
    import numpy as np

    from aie_engine.constraints import ConstraintMaker, ConstraintSpec

    tokenizer = load_text_model(tiny_model).tokenizer
    (mark,) = tokenizer.encode("<|im_start|>")
    made = ToolFormat("made up", "", "<|im_start|>", "", is_list=True)
    assert made.has_special_marks(tokenizer)
    assert not find_format(ChatTemplate(KNOWING)).has_special_marks(tokenizer)
    add = [Function("add", {"type": "object", "additionalProperties": False}, False)]
    maker = ConstraintMaker(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=(2,))

    def allowed(constraint: Any) -> set[int]:
        return set(np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")).tolist())

    forced = maker.make(ConstraintSpec("grammar", made.forced(add, tokenizer, several=False)))
    assert allowed(forced) == {mark}
    words = maker.make(ConstraintSpec("grammar", made.among_words(add, tokenizer, several=False)))
    assert {mark, *tokenizer.encode("Let")[:1]} <= allowed(words)
    for constraint in (forced, words):
        for token in [mark, *tokenizer.encode('[{"name": "add", "arguments": {}}]')]:
            assert token in allowed(constraint)
            constraint.accept(token)
        assert constraint.is_done
    ids = [mark, *tokenizer.encode('[{"name": "add", "arguments": {}}]')]
    reader = made.reader(add, max_calls=None)
    assert reader.push(tokenizer.decode(ids, skip_special_tokens=False)) == []
    assert reader.finish() == [Call("add", "{}")]
