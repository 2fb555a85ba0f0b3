"""Calls found in text: however the text is cut into pieces, the same words and calls come out."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_server.api.forced_calls import ForcedReader
from aie_server.api.tool_calls import Call, CallReader, LeadingReader, MarkedReader, More, Piece, read_calls

NAMES = {"weather", "add"}
WEATHER = '{"name": "weather", "arguments": {"city": "Köln"}}'
ADD = '{"name": "add", "arguments": {"a": 1, "b": [2, "x"]}}'
CALLS = {WEATHER: Call("weather", '{"city":"Köln"}'), ADD: Call("add", '{"a":1,"b":[2,"x"]}')}


def marked(**options: int) -> MarkedReader:
    return MarkedReader(NAMES, "<tool_call>", "</tool_call>", **options)


def read(reader: CallReader, *texts: str) -> list[str | Call]:
    """What came out, words in one piece and arguments, too."""
    pieces: list[str | Call] = []
    for piece in [piece for text in texts for piece in reader.push(text)] + reader.finish():
        last = pieces[-1] if pieces else None
        if isinstance(piece, More):
            assert isinstance(last, Call) and piece.arguments, "an empty piece, or of no call"
            pieces[-1] = Call(last.name, last.arguments + piece.arguments)
        elif isinstance(piece, str) and isinstance(last, str):
            pieces[-1] = last + piece
        else:
            assert piece, "an empty piece"
            pieces.append(piece)
    return pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("Plain words.", ["Plain words."]),
        (" \n", [" \n"]),
        ("a < b <tool", ["a < b <tool"]),
        (f"<tool_call>\n{WEATHER}\n</tool_call>", [CALLS[WEATHER]]),
        (f"<tool_call>[{WEATHER}, {ADD}]</tool_call>", [CALLS[WEATHER], CALLS[ADD]]),
        (f"Let me see.\n<tool_call>{ADD}</tool_call>\n", ["Let me see.", CALLS[ADD]]),
        (f"<tool_call>{ADD}</tool_call>\n<tool_call>{WEATHER}</tool_call>", [CALLS[ADD], CALLS[WEATHER]]),
        (f"<tool_call>{ADD}</tool_call>\n and words", [CALLS[ADD], "and words"]),
        (f"<tool_call>{ADD}", [CALLS[ADD]]),
        ('<tool_call>{"name": "add", "arguments": {"a"', ['<tool_call>{"name": "add", "arguments": {"a"']),
        ("<tool_call>nonsense</tool_call> so", ["<tool_call>nonsense</tool_call> so"]),
        ('<tool_call>{"name": "other"}</tool_call>', ['<tool_call>{"name": "other"}</tool_call>']),
        (f"<tool_call>[{ADD}, 1]</tool_call>", [f"<tool_call>[{ADD}, 1]</tool_call>"]),
        ("<tool_call>[]</tool_call>", ["<tool_call>[]</tool_call>"]),
    ],
)
def test_marked_calls(text: str, pieces: list[str | Call]) -> None:
    assert read(marked(), text) == pieces
    assert read(marked(), *text) == pieces


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", WEATHER, ADD, "[", "]", ",", "words", " ", "\n", "<", "é", "{"]
)


@given(st.lists(PIECES, max_size=12), st.lists(st.integers(0, 200), max_size=8))
def test_how_the_text_is_cut_makes_no_difference(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    at = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    for new in (marked, lambda: LeadingReader(NAMES), lambda: MarkedReader(NAMES, "<", "")):
        assert read(new(), *(text[a:b] for a, b in itertools.pairwise(at))) == read(new(), text)


def test_words_are_not_held_back_longer_than_they_must_be() -> None:
    reader = marked()
    assert reader.push("Some words") == ["Some words"]
    assert reader.push(" and") == [" and"]
    assert reader.push(" ") == []
    assert reader.push("<to") == []
    assert reader.push("p>") == [" <top>"]


def test_a_call_comes_when_it_is_complete() -> None:
    reader = marked()
    assert reader.push(f"<tool_call>{ADD}</tool_cal") == []
    assert reader.push("l>") == [CALLS[ADD]]


def test_only_one_call_for_who_wants_one() -> None:
    text = f"<tool_call>[{ADD}, {WEATHER}]</tool_call><tool_call>{WEATHER}</tool_call>"
    assert read(marked(max_calls=1), text) == [CALLS[ADD]]
    assert read(LeadingReader(NAMES, max_calls=1), f"[{ADD}, {WEATHER}]") == [CALLS[ADD]]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        (f" {ADD}", [CALLS[ADD]]),
        (f"[{ADD},{WEATHER}]", [CALLS[ADD], CALLS[WEATHER]]),
        ('{"name": "add", "parameters": {"a": 1}}', [Call("add", '{"a":1}')]),
        ('{"answer": 42}', ['{"answer": 42}']),
        (f"So: {ADD}", [f"So: {ADD}"]),
        ("   ", ["   "]),
    ],
)
def test_leading_calls(text: str, pieces: list[str | Call]) -> None:
    assert read(LeadingReader(NAMES), text) == pieces


def test_calls_up_to_the_end_of_the_answer() -> None:
    reader = MarkedReader(NAMES, "[TOOL_CALLS]", "")
    assert read(reader, f"Now [TOOL_CALLS] [{ADD}]") == ["Now", CALLS[ADD]]


FORCED = [
    ("", []),
    ("words of another engine", ["words of another engine"]),
    (f"<tool_call>\n{WEATHER}\n</tool_call>", [Call("weather", '{"city": "Köln"}')]),
    (f"<tool_call>[{ADD}, {WEATHER}]</tool_call>", [Call("add", '{"a": 1, "b": [2, "x"]}'),
                                                    Call("weather", '{"city": "Köln"}')]),
    ('{"name": "add", "arguments":  {"a": "}\\"{\\\\"}}', [Call("add", '{"a": "}\\"{\\\\"}')]),
    ('{"name": "add", "arguments": {"a": "{\\"name\\": \\"add\\"', [Call("add", '{"a": "{\\"name\\": \\"add\\"')]),
    ('{"name": "add", "arguments": ', [Call("add", "")]),
    ('{"na', []),
    ('{"name": "ad', []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "pieces"), FORCED)
def test_forced_calls(text: str, pieces: list[str | Call]) -> None:
    assert read(ForcedReader(NAMES, "arguments"), text) == pieces
    assert read(ForcedReader(NAMES, "arguments"), *text) == pieces


def test_a_forced_call_is_cut_until_its_arguments_have_ended() -> None:
    reader = ForcedReader(NAMES, "arguments", '<tool_call>[{"name": "')
    seen = []
    for text in ("<tool_call>[", '{"name": "add", "arguments": ', '{"a": [1]', "}", "}, ", '{"name": "weather", "argu'):
        reader.push(text)
        seen.append(reader.is_cut)
    assert seen == [False, True, True, False, False, False]
    for begin in ("<tool", '<tool_call>[{"name": "we'):
        assert read(ForcedReader(NAMES, "arguments", '<tool_call>[{"name": "'), begin) == []


def test_forced_arguments_go_out_as_they_come() -> None:
    reader = ForcedReader(NAMES, "arguments")
    assert reader.push('<tool_call>\n{"name": "add", "argum') == []
    news: list[Piece] = [Call("add", ""), More('{"a"')]
    assert reader.push('ents": {"a"') == news
    assert reader.push(": [1, 2") == [More(": [1, 2")]
    assert reader.push("]}}\n</tool") == [More("]}")]
    assert reader.push("_call>") == []


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "null", '"add"', "[]", "{}", '{"name": 5}', '{"name": "add", "arguments": [1]}', "{'name': 'add'}",
        '{"name": "add", "arguments": "no json"}', '{"name": "add", "arguments": NaN}', "[" * 100_000, '{"name": "add"',
        '{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}x", '{"name": ["add"]}',
    ],
)  # fmt: skip
def test_what_is_no_call(text: str) -> None:
    assert read_calls(text, NAMES) is None


def test_arguments_may_be_left_out_or_be_text() -> None:
    assert read_calls('{"name": "add"}', NAMES) == [Call("add", "{}")]
    assert read_calls(json.dumps({"name": "add", "arguments": '{"a": 1}'}), NAMES) == [Call("add", '{"a":1}')]
