"""JSON from strangers: what is let through is what `json` makes of it, and no text takes more than linear time."""

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_loader import MalformedHeaderError, MissingFileError
from aie_loader.formats import optional_json_object, parse_json, read_json_object, strict_json

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=20,
)


@given(values, st.booleans())
def test_what_json_writes_is_read(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no UTF-8 text holds
        return
    try:
        assert parse_json(raw, "it") == value
    except MalformedHeaderError as error:
        assert "not valid UTF-8" in str(error) and "\\ud" in text


@given(st.text(alphabet='[]{},:"\\ax', max_size=40))
def test_structure_is_measured_as_json_sees_it(text: str) -> None:
    """Whatever JSON accepts, the measure before it must accept, too, and count its depth right."""
    try:
        value = json.loads(text)
    except ValueError:
        return
    depth = depth_of(value)
    assert parse_json(text.encode(), "it", max_depth=depth) == value
    if depth:
        with pytest.raises(MalformedHeaderError, match="nests deeper"):
            parse_json(text.encode(), "it", max_depth=depth - 1)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


MANY = 500_000
LONG = {
    "string that nothing ends, full of quotation marks": b'{"' + b'\\"' * MANY,
    "backslashes": b'{"' + b"\\" * MANY,
    "strings": b"{" + b'"",' * MANY,
    "closing brackets": b"{" + b"]" * 20 * MANY,
    "opening brackets": b"[" * MANY,
    "digits": b"[" + b"9" * MANY + b"]",
    "commas": b"[" + b"," * 20 * MANY,
    "escapes": b'["' + b"\\u0041" * MANY + b'x"',
    "twice": b"{" + b'"a":1,' * MANY + b'"a":1}',
    "spaces": b"{" + b" " * 20 * MANY,
}


@pytest.mark.parametrize("kind", LONG)
def test_no_text_takes_more_than_linear_time(kind: str) -> None:
    """Each is a second or more away from the quadratic time that it could take: a minute at the very least."""
    start = time.process_time()
    with pytest.raises(MalformedHeaderError):
        parse_json(LONG[kind], "it")
    assert time.process_time() - start < 10


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7])
@given(text=st.text(alphabet='[]{},:"\\ax', max_size=40))
def test_pieces_of_a_text_have_the_structure_of_the_whole(piece_bytes: int, text: str) -> None:
    whole = b"".join(strict_json._skeletons(text.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "_PIECE_BYTES", piece_bytes)
        assert b"".join(strict_json._skeletons(text.encode())) == whole


def test_millions_of_keys_cost_no_more_than_a_few_pieces() -> None:
    raw = b'{"a":' * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedHeaderError, match="nests deeper"):
            parse_json(raw, "it")
        with pytest.raises(MalformedHeaderError, match="more than 400,000 values"):
            parse_json(raw, "it", max_depth=10**7, max_values=400_000)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_files(tmp_path: Path) -> None:
    assert optional_json_object(tmp_path / "none.json") == {}
    with pytest.raises(MissingFileError):
        read_json_object(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(MalformedHeaderError, match="does not hold a JSON object"):
        read_json_object(tmp_path / "a.json")
    with pytest.raises(MalformedHeaderError, match="has 3 bytes; at most 2 are accepted"):
        read_json_object(tmp_path / "a.json", max_bytes=2)
    (tmp_path / "a.json").write_text('{"a": 1, "b": {"c": 2, "c": 3}}')
    with pytest.raises(MalformedHeaderError, match=r"'c' occurs twice in one object$"):
        read_json_object(tmp_path / "a.json")
