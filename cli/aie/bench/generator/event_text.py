"""What an event of OpenAI's API holds: text, token counts, an error.

Nearly all events of a stream differ in their text alone, so `TextFinder` learns from one of them what stands before and
after the text, and finds the next by comparing bytes. What does not compare is read as JSON: the result is the same,
only later. Of what a server sends nothing is taken on trust: see `read_event`.
"""

import json
from typing import Any

__all__ = ["TextFinder", "count_of", "read_event", "text_of"]

_TRIES = 4


class TextFinder:
    """One for each stream."""

    __slots__ = ("_after", "_before")

    def __init__(self) -> None:
        self._before = self._after = b""

    def text_in(self, payload: bytes) -> str | None:
        """Of an event like that from which was learnt; None: it has to be read."""
        before, after = self._before, self._after
        if not before or not payload.startswith(before) or not payload.endswith(after):
            return None
        end = len(payload) - len(after)
        if end < len(before):
            return None
        middle = payload[len(before) : end]
        if not middle or b'"' in middle or b"\\" in middle or not middle.isascii():
            return None
        text = middle.decode("ascii")
        return text if text.isprintable() else None

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
                    self._before, self._after = before, after
                    return
            except ValueError:
                pass
            at = payload.find(needle, at + 1)


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
    if not isinstance(count, int) or count < 0:
        raise ValueError(f"a usage whose {name} are no count")
    return count
