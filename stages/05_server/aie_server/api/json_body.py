"""A request body as a JSON object. msgspec checks the grammar (UTF-8, no NaN, no Infinity, numbers in range, no lone
surrogates)."""

import json
import re
from typing import Final

import msgspec

from aie_engine import InvalidInputError

__all__ = ["decode_object"]

_decoder = msgspec.json.Decoder()

# The first half of a UTF-16 pair, without the second.
_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_NESTED: Final = frozenset({dict, list})


class _DuplicateKeyError(ValueError):
    pass


def decode_object(body: bytes) -> dict[str, object]:
    """Raises `InvalidInputError` for whatever is not one JSON object. The message never quotes the body."""
    if not body:
        raise InvalidInputError("The body is empty; a JSON object is expected.")
    try:
        value = _decoder.decode(body)
        # Which of two equal keys counts differs between parsers, and msgspec does not tell: the standard library can,
        # at many times the cost. Every key of the text brings a colon: as many colons as keys left mean no such two.
        if body.count(b":") != _num_keys(value):
            json.loads(body, object_pairs_hook=_unique)
    except RecursionError:
        raise InvalidInputError("The body is nested too deeply.") from None
    except _DuplicateKeyError as error:
        raise InvalidInputError(
            f"The body has the key {str(error)[:100]!r} twice in one object.", param=str(error)[:100]
        ) from None
    except (msgspec.DecodeError, ValueError) as error:
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "a number is too long"
        if _HALF.search(body):  # the decoder may then say that the body is truncated
            reason = "a string has half of a character, such as an emoji that was cut in two"
        raise InvalidInputError(f"The body is not valid JSON: {reason}.") from None
    if not isinstance(value, dict):
        raise InvalidInputError("The body must be a JSON object.")
    return value


def _num_keys(value: object) -> int:
    """Of all objects in `value`. Quick for long lists of numbers."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        if type(one) is dict:
            count += len(one)
            left += [inner for inner in one.values() if type(inner) is dict or type(inner) is list]
        elif type(one) is list and not _NESTED.isdisjoint(map(type, one)):
            left += one
    return count


def _unique(pairs: list[tuple[str, object]]) -> None:
    keys = set()
    for key, _ in pairs:
        if key in keys:
            raise _DuplicateKeyError(key)
        keys.add(key)
