"""Finding calls of functions in what a model writes.

Models write calls as text, each family in its own way, and a client wants them apart from the answer's words. A reader
takes the text as it comes and gives out words and calls in their order. Nothing that may still become a call is given
out as words, and no call before it is complete: what begins like one and is none (broken JSON, a function that nobody
offered) is words after all, and what a client has seen cannot be taken back.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from aie_server.api.structured import json_text

__all__ = ["Call", "CallReader", "LeadingReader", "MarkedReader", "More", "NewReader", "Piece"]

_decode = msgspec.json.Decoder().decode
_ARGUMENTS: Final = ("arguments", "parameters")  # families disagree on the name


@dataclass(frozen=True, slots=True)
class Call:
    """A function to be called; `arguments` is a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class More:
    """More of the arguments of the call before it."""

    arguments: str


Piece = str | Call | More


class CallReader(Protocol):
    """For one answer. Pieces of words are never empty."""

    def push(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """The answer has ended."""
        ...

    @property
    def is_cut(self) -> bool:
        """The last call has no end (yet)."""
        ...


NewReader = Callable[[], CallReader]


class MarkedReader:
    """Calls between two marks, such as `<tool_call>` and `</tool_call>`, with one JSON object or a list between them.

    closing: empty where calls reach to the answer's end. names: the functions there are. max_calls: further ones are
    dropped, for clients that want one at a time. White space around calls is no words.
    """

    def __init__(self, names: Collection[str], opening: str, closing: str, *, max_calls: int | None = None) -> None:
        self._names = names
        self._opening = opening
        self._closing = closing
        self._room = max_calls
        self._held = ""  # words that may be part of a mark, or what follows an opening one
        self._searched = 0  # characters of it without a closing mark
        self._is_inside = False
        self._has_called = False

    def push(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._read_call(pieces) if self._is_inside else self._read_words(pieces):
            pass
        return pieces

    @property
    def is_cut(self) -> bool:
        return False  # calls are whole when they are given out

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._is_inside:  # the closing mark was left out, as it is when that ends the answer
            return self._taken(held, held.strip())
        return [held] if held.strip() or (held and not self._has_called) else []

    def _read_words(self, pieces: list[Piece]) -> bool:
        """Up to the next mark; whether there is one."""
        if self._has_called:
            self._held = self._held.lstrip()
        at = self._held.find(self._opening)
        if at >= 0:
            words, self._held = self._held[:at].rstrip(), self._held[at + len(self._opening) :]
            self._is_inside, self._searched = True, 0
        else:
            kept = _num_held(self._held, self._opening)
            words, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        if words:
            pieces.append(words)
            self._has_called = False
        return at >= 0

    def _read_call(self, pieces: list[Piece]) -> bool:
        """Up to the closing mark; whether there is one."""
        at = self._held.find(self._closing, self._searched) if self._closing else -1
        if at < 0:
            self._searched = max(0, len(self._held) - len(self._closing) + 1)
            return False
        inner, self._held = self._held[:at], self._held[at + len(self._closing) :]
        self._is_inside = False
        pieces += self._taken(inner + self._closing, inner)
        return True

    def _taken(self, text: str, inner: str) -> list[Piece]:
        """The calls in `inner`, or all of it as words, with the mark before it."""
        calls = read_calls(inner, self._names)
        if calls is None:
            self._has_called = False
            return [self._opening + text]
        self._has_called = True
        if self._room is not None:
            calls = calls[: self._room]
            self._room -= len(calls)
        return list(calls)


class LeadingReader:
    """Calls without marks: an answer that begins with `{` or `[` is one or several, or it is words."""

    def __init__(self, names: Collection[str], *, max_calls: int | None = None) -> None:
        self._names = names
        self._room = max_calls
        self._held = ""
        self._is_words = False

    def push(self, text: str) -> list[Piece]:
        if self._is_words:
            return [text] if text else []
        self._held += text
        begin = self._held.lstrip()
        if not begin or begin[0] in "{[":
            return []
        self._is_words = True
        return [self._held]

    @property
    def is_cut(self) -> bool:
        return False  # calls are whole when they are given out

    def finish(self) -> list[Piece]:
        if self._is_words or not self._held:
            return []
        calls = read_calls(self._held, self._names)
        return [self._held] if calls is None else list(calls[: self._room])


def read_calls(text: str, names: Collection[str]) -> list[Call] | None:
    """The calls that `text` is: a JSON object with a name and arguments, or a list of such; None if it is not that."""
    try:
        value = _decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    items = value if isinstance(value, list) else [value]
    calls = [_read_call(item, names) for item in items]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _read_call(item: object, names: Collection[str]) -> Call | None:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(name, str) or name not in names:
        return None
    arguments: object = next((item[key] for key in _ARGUMENTS if key in item), {})
    if isinstance(arguments, str):  # some write the text of the object
        try:
            arguments = _decode(arguments)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return None
    return Call(name, json_text(arguments)) if isinstance(arguments, dict) else None


def _num_held(text: str, mark: str) -> int:
    """Length of the end of `text` that may go on to be `mark`, with the white space before it."""
    ending = next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
    words = text[: len(text) - ending]
    return ending + len(words) - len(words.rstrip())
