"""The parser of request heads by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_server import FramingError, HttpLimits
from aie_server.http import parse_head

LIMITS = HttpLimits()
TOKEN = st.text("abcXYZ09-_!", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)


@given(st.binary(max_size=300))
def test_any_bytes_parse_or_raise_a_framing_error(data: bytes) -> None:
    try:
        head = parse_head(data, LIMITS)
    except FramingError as error:
        assert error.status in (400, 431, 414, 501, 505)
    else:
        assert head.version >= (1, 0)


@given(names=st.lists(TOKEN, max_size=8, unique_by=str.lower), values=st.lists(VALUE, min_size=8, max_size=8))
def test_valid_headers_come_back_as_they_were(names: list[str], values: list[str]) -> None:
    pairs = list(zip(names, values, strict=False))
    lines = ["GET /p?q=1 HTTP/1.1", "Host: h", *(f"{name}:\t {value} " for name, value in pairs)]
    head = parse_head("\r\n".join(lines).encode(), LIMITS)
    assert (head.method, head.path, head.query) == ("GET", "/p", "q=1")
    assert all(head.headers[name.lower()] == value for name, value in pairs)


@given(
    mutation=st.sampled_from(["\n", "\r", "\0", "\x0b", "\x7f", "\r\n folded"]),
    position=st.integers(0, 10),
)
def test_a_control_character_anywhere_in_a_value_is_refused(mutation: str, position: int) -> None:
    value = "valuevalue"
    with pytest.raises(FramingError):
        parse_head(f"GET / HTTP/1.1\r\nHost: h\r\nX: {value[:position]}{mutation}v{value[position:]}".encode(), LIMITS)


@pytest.mark.parametrize(
    ("target", "path"),
    [("/a/b", "/a/b"), ("http://host:80/a?x=1", "/a"), ("HTTPS://host", "/"), ("/?", "/"), ("*", "*")],
)
def test_origin_and_absolute_form(target: str, path: str) -> None:
    assert parse_head(f"GET {target} HTTP/1.1\r\nHost: h".encode(), LIMITS).path == path


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        ("1.1", None, True),
        ("1.1", "close", False),
        ("1.1", "x, Close", False),
        ("1.0", None, False),
        ("1.0", "Keep-Alive", True),
    ],
)
def test_keep_alive(version: str, connection: str | None, keep_alive: bool) -> None:
    extra = f"\r\nConnection: {connection}" if connection else ""
    assert parse_head(f"GET / HTTP/{version}\r\nHost: h{extra}".encode(), LIMITS).keep_alive is keep_alive


@pytest.mark.parametrize("value", [b" " * 30_000, b"a " * 15_000, b"\t" * 30_000])
def test_the_time_for_a_refusal_does_not_explode_with_the_blanks_in_a_header(value: bytes) -> None:
    """A head of full size takes microseconds per kilobyte; a pattern that backtracks would take hours, and the time-out
    of the suite ends the test."""
    with pytest.raises(FramingError) as caught:
        parse_head(b"GET / HTTP/1.1\r\nHost: a\r\nA:" + value + b"\x01", LIMITS)
    assert caught.value.code == "bad_header"
    assert (
        parse_head(b"GET / HTTP/1.1\r\nHost: a\r\nA:" + value + b"x \t", LIMITS).headers["a"]
        == (value.lstrip(b" \t") + b"x").decode()
    )
