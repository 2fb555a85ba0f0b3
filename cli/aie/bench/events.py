"""An event stream (text/event-stream) in the pieces in which it arrives, and what one event of OpenAI's API may hold.

Lines end with LF, CR or both, and a piece may end anywhere, between the two as well. Of what a server sends nothing is
taken on trust: whatever is not as it should be is a `ValueError` with a few words that can be counted.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

__all__ = ["count_of", "read_event", "split_events", "text_of"]

_MAX_EVENT_BYTES = 4 << 20


async def split_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The `data:` payloads."""
    rest, data, size = b"", list[bytes](), 0
    after_cr = False
    async for piece in pieces:
        arrived = piece[1:] if after_cr and piece.startswith(b"\n") else piece
        if not arrived:
            after_cr = False
            continue
        after_cr = arrived.endswith(b"\r")
        if b"\r" in arrived:
            arrived = arrived.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = (rest + arrived).split(b"\n")
        for line in lines:
            if not line:
                if payload := b"\n".join(data):
                    yield payload
                data, size = [], 0
            elif line.startswith(b"data:"):
                data.append(line[5:].lstrip())
                size += len(line)
        if size + len(rest) > _MAX_EVENT_BYTES:
            raise ValueError("an event of more than 4 MiB")


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
