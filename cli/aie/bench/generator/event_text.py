"""What an event of OpenAI's API holds: text, token counts, an error.

Nearly all events of a stream differ in their text alone, so `TextFinder` learns from one of them what stands before and
after the text, and finds the next by comparing bytes. What does not compare is read as JSON: the result is the same,
only later. Of what a server sends nothing is taken on trust: see `read_event`.
"""

import json
from typing import Any

from aie.bench.generator.http_reader import chunk_length

__all__ = ["TextFinder", "count_of", "read_event", "text_of"]

_TRIES = 4
_MOST_TOKENS = 1_000_000_000  # of one request; JSON's numbers have no end, and those that floats lack end a report
_AS_IT_IS = bytes({*range(0x20, 0x7F), *range(0x80, 0x100)} - {*b'"\\'})  # in a JSON string, if it is UTF-8 at all


class TextFinder:
    """One for each stream. text: what was found last, in UTF-8."""

    __slots__ = ("_after", "_before", "_is_new", "_read_after", "_read_before", "text")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._read_before = self._read_after = b""
        self._is_new = False
        self.text = b""

    def finds_in(self, payload: bytes) -> bool:
        """Whether it is an event like that from which was learnt; else it has to be read."""
        before, after = self._before, self._after
        if not before or not payload.startswith(before) or not payload.endswith(after):
            return False
        return self._is_text(payload[len(before) : len(payload) - len(after)])

    def finds_at_a_glance(self, data: bytes) -> int:
        """The same of all that was read, with what is around an event: the length of its chunk; 0 where it is not one
        chunk with one such event. For connections that are between two chunks and two events."""
        before, after = self._read_before, self._read_after
        begin = data.find(b"\r\n", 0, 16) + 2
        if not before or not data.startswith(before, begin) or not data.endswith(after):
            return 0
        size = chunk_length(data, begin)
        return size if size and self._is_text(data[begin + len(before) : len(data) - len(after)]) else 0

    def _is_text(self, middle: bytes) -> bool:
        if not middle or middle.strip(_AS_IT_IS):
            return False
        if not middle.isascii():
            try:
                middle.decode()
            except ValueError:
                return False
        self.text = middle
        return True

    def learn(self, payload: bytes, event: dict[str, Any], text: str) -> None:
        """From an event that was read and has `text`. Where it stands is tried out: with another text in its place the
        same event has that text."""
        if event.get("usage") is not None or event.get("error") is not None:
            return
        needle = b'"' + text.encode() + b'"' if text.isascii() else b""
        at = payload.find(needle) if needle else -1
        for _ in range(_TRIES):
            if at < 0:
                return
            before, after = payload[: at + 1], payload[at + len(needle) - 1 :]
            try:
                if text_of(read_event(before + b"?" + text.encode() + after)) == f"?{text}":
                    self._before, self._after, self._is_new = before, after, True
                    return
            except ValueError:
                pass
            at = payload.find(needle, at + 1)

    def learn_around(self, data: bytes, payload: bytes) -> None:
        """From what was read when the event came from which was learnt last, and nothing else."""
        begin = data.find(b"\r\n", 0, 16) + 2
        if not self._is_new or not chunk_length(data, begin) or data.count(payload) != 1:
            return
        at = data.find(payload)
        self._read_before = data[begin:at] + self._before
        self._read_after = self._after + data[at + len(payload) :]
        self._is_new = False


def read_event(payload: bytes) -> dict[str, Any]:
    """An event is a JSON object."""
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError):
        raise ValueError("an event that is no JSON") from None
    if not isinstance(event, dict):
        raise ValueError("an event that is no JSON object")
    return event


def text_of(event: dict[str, Any]) -> str:
    """Of the first choice, completed or chatted; empty where the event has none."""
    choices = event.get("choices") or [{}]
    choice = choices[0] if isinstance(choices, list) else None
    delta = choice.get("delta") or {} if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(delta, dict):
        raise ValueError("an event whose choices are none")
    text = choice.get("text") or delta.get("content") or ""
    if not isinstance(text, str):
        raise ValueError("an event whose text is none")
    return text


def count_of(usage: dict[str, Any], name: str) -> int:
    """Tokens, as the server counts them; 0 where it does not say."""
    count = usage.get(name)
    if count is None:
        return 0
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_TOKENS:
        raise ValueError(f"a usage whose {name} are no count")
    return count
