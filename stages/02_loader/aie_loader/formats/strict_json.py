"""JSON as RFC 8259 means it, for files from strangers.

Python's `json` accepts more than JSON (NaN, Infinity), lets a duplicate key win silently, keeps lone surrogates that no
encoder can write again, and recurses as deep as the text nests. Here each of these ends in one typed error, and the
text is measured (depth, number of values) before a single object is built.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate
from pathlib import Path

from aie_loader.errors import MalformedHeaderError
from aie_loader.formats.source import SourceFile, path_kind, shown

__all__ = ["optional_json_object", "parse_json", "read_json_object"]

# Possessive quantifiers: no backtracking, and no stack however long the string is. A string that nothing ends is
# matched up to the end of the text, or else the search would begin anew at each quotation mark in it: quadratic time.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BACKSLASH = re.compile(rb"[^\\]")
_PIECE_BYTES = 1 << 18
_MAX_CONFIG_BYTES = 16 << 20


def parse_json(
    raw: bytes,
    what: str,
    *,
    max_depth: int = 32,
    max_values: int = 2_000_000,
    parse_int: Callable[[str], object] = int,
    shadowed: list[tuple[str, object]] | None = None,
    unrepeatable: Collection[str] = (),
) -> object:
    """The value that `raw` holds. MalformedHeaderError names `what` and the broken rule. Linear in `len(raw)`.

    A key that occurs twice in an object is an error, unless `shadowed` is given: then the last one counts, except for
    those in `unrepeatable`, and `shadowed` holds afterwards what the outermost object said before.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if shadowed is not None:
            shadowed.clear()  # objects end from the inside out, so the outermost one is the last to come here
        if len(result) != len(pairs):
            twice = _shadowed(pairs)
            unwanted = next((key for key, _ in twice if shadowed is None or key in unrepeatable), None)
            if unwanted is not None:
                raise ValueError(f"the key {shown(unwanted)} occurs twice in one object")
            if shadowed is not None:
                shadowed.extend(twice)
        return result

    _check_size(raw, what, max_depth, max_values)
    try:
        text = raw.decode("utf-8")
        value: object = json.loads(text, object_pairs_hook=unique, parse_int=parse_int, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except UnicodeError as error:
        raise MalformedHeaderError(f"{what} is not valid UTF-8 text: {error.reason}") from error  # type: ignore[attr-defined]
    except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError; so is an integer of 5,000 digits
        raise MalformedHeaderError(f"{what} is not valid JSON: {error}") from error
    return value


def read_json_object(path: Path, *, max_bytes: int = _MAX_CONFIG_BYTES) -> dict[str, object]:
    """The JSON object in a (small) file, such as `config.json`."""
    with SourceFile(path) as source:
        if source.size_bytes > max_bytes:
            raise MalformedHeaderError(f"{path} has {source.size_bytes:,} bytes; at most {max_bytes:,} are accepted")
        value = parse_json(source.read(0, source.size_bytes), str(path))
    if not isinstance(value, dict):
        raise MalformedHeaderError(f"{path} does not hold a JSON object")
    return value


def optional_json_object(path: Path) -> dict[str, object]:
    """As `read_json_object`; an empty object where there is no such file."""
    return read_json_object(path) if path_kind(path) is not None else {}


def _check_size(raw: bytes, what: str, max_depth: int, max_values: int) -> None:
    num_commas, num_brackets, depth = 0, 0, 0
    for skeleton in _skeletons(raw):
        brackets = skeleton.translate(None, _NOT_BRACKETS)
        num_commas += skeleton.count(b",")
        num_brackets += len(brackets)
        if num_commas + num_brackets // 2 > max_values:
            raise MalformedHeaderError(f"{what} holds more than {max_values:,} values")
        if max(accumulate((_STEP[byte] for byte in brackets), initial=depth)) > max_depth:
            raise MalformedHeaderError(f"{what} nests deeper than {max_depth} levels")
        depth += 2 * (brackets.count(b"[") + brackets.count(b"{")) - len(brackets)


def _skeletons(raw: bytes) -> Iterator[bytes]:
    """What has structure only: brackets and commas inside strings are gone. Piece by piece, since taking out millions
    of strings at once costs many times the memory of the text, and too many values show in the first pieces."""
    begin, opened = 0, b""
    while begin < len(raw):
        # A piece must not end between a backslash and what it escapes. Behind the piece stands a quotation mark with a
        # byte that no UTF-8 has: the byte is left over where the mark ends a string, and gone where it begins one.
        end = _NOT_BACKSLASH.search(raw, min(begin + _PIECE_BYTES, len(raw)) - 1)
        stop = len(raw) if end is None else end.end()
        skeleton = _STRINGS.sub(b"", opened + raw[begin:stop] + b'"\xff')
        opened = b'"' if skeleton.endswith(b"\xff") else b""
        yield skeleton.removesuffix(b"\xff")
        begin = stop


def _shadowed(pairs: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """The pairs after which their key comes again."""
    later: set[str] = set()
    return [(key, value) for key, value in reversed(pairs) if key in later or later.add(key)]  # type: ignore[func-returns-value]


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")
