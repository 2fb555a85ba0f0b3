"""Calls in an answer that a grammar forced to be calls: their arguments need not be held back.

What a grammar wrote is right by construction, head and marks to the letter, so a call is known by its head, and its
arguments may go out as they come. Where `max_tokens` cuts them, they are cut, as in OpenAI's API, and `finish_reason`
says so.
"""

import re
from collections.abc import Collection

from aie_server.api.tool_calls import Call, More, Piece

__all__ = ["ForcedReader"]


class ForcedReader:
    """A `CallReader`. begin: what the grammar puts before the first function's name. An answer that was cut before any
    call says nothing; but what begins in another way is words: some other engine wrote it, without a grammar."""

    def __init__(self, names: Collection[str], key: str, begin: str = '{"name": "') -> None:
        known = "|".join(re.escape(name) for name in names)
        self._head = re.compile(rf'\{{"name": "({known})", "{re.escape(key)}": ')
        self._begin = begin
        self._held = ""  # up to the next head
        self._depth = 0  # of braces and brackets in the arguments
        self._is_inside = False  # arguments
        self._is_text = False  # within quotes
        self._is_escaped = False
        self._has_called = False

    def push(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._read_arguments(pieces) if self._is_inside else self._read_head(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        is_cut = self._held.startswith(self._begin) or self._begin.startswith(self._held)
        return [] if self._has_called or is_cut else [self._held]

    @property
    def is_cut(self) -> bool:
        return self._is_inside

    def _read_head(self, pieces: list[Piece]) -> bool:
        found = self._head.search(self._held)
        if found is None:
            return False
        pieces.append(Call(found[1], ""))
        self._held = self._held[found.end() :]
        self._is_inside = self._has_called = True
        return True

    def _read_arguments(self, pieces: list[Piece]) -> bool:
        """What there is of them; whether that is all."""
        if self._depth == 0:
            self._held = self._held.lstrip()
        end = self._end()
        text, self._held = self._held[:end], self._held[end:]
        if text:
            pieces.append(More(text))
        self._is_inside = not text or self._depth > 0
        return not self._is_inside

    def _end(self) -> int:
        """Characters that belong to the arguments."""
        for index, char in enumerate(self._held):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_text:
                self._is_escaped = char == "\\"
                self._is_text = char != '"'
            elif char == '"':
                self._is_text = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return len(self._held)
