"""Keys that come twice are refused, whatever else the body holds; everything else passes as it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_engine import InvalidInputError
from aie_server.api.json_body import decode_object

TEXTS = st.text(alphabet=st.sampled_from('a:"\\{é'), max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": [{"b": 1, "b": 2}]}',
        b'{"a": [1, [2, {"b": 1, "b": 2}]], "c": 3}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a:": 1, "a:": 2, "b": ":"}',
    ],
)
def test_a_key_twice(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="twice"):
        decode_object(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [(rb'{"a": "\ud83d"}', "cut in two"), (rb'{"a": "\ud83d", "b": 1}', "cut in two"),
     (rb'{"a": "\ude00"}', "surrogate"), (rb'{"a": "\ud83d\ude00', "truncated"), (b'{"a": "', "truncated")],
)  # fmt: skip
def test_half_a_character_is_not_called_a_truncated_body(body: bytes, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        decode_object(body)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.booleans())
def test_all_else_passes(value: dict[str, object], escaped: bool) -> None:
    assert decode_object(json.dumps(value, ensure_ascii=escaped).encode()) == value


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), st.data())
def test_any_object_with_a_key_twice(value: dict[str, object], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(list(value)))
    inner = json.dumps(value)[1:-1]
    with pytest.raises(InvalidInputError, match="twice"):
        decode_object(f'{{"x": [0, {{{inner}, {json.dumps(key)}: 1}}]}}'.encode())
