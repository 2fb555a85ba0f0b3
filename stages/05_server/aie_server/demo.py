"""A client made of a bare socket that prints every byte it sends and receives, with the time and what it means."""

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["annotated_request"]

_TIMEOUT_S: Final = 60.0
_COLUMN: Final = 58  # where the comments begin
_MAX_SHOWN_EVENTS: Final = 5

_REQUEST_NOTES: Final[Mapping[str, str]] = {
    "POST": "method, path, version; ends with CR LF, never LF alone",
    "Host": "needed exactly once in HTTP/1.1",
    "Content-Type": "not needed; said by every polite client",
    "Content-Length": "plain digits, once: where the body ends",
}
_ANSWER_NOTES: Final[Mapping[str, str]] = {
    "HTTP/1.1 200": "sent with the first token, so failures before it keep their own status",
    "HTTP/1.1 4": "the request is at fault: sending it again will not help",
    "Content-Type: text/event-stream": "server-sent events: `data: …` and an empty line",
    "Cache-Control": "no proxy may keep this",
    "Transfer-Encoding": "the length is unknown yet: each piece says its own, in hex",
    "Content-Length": "the length is known, and the connection can be used again",
    "X-Request-Id": "find this request in the log; send your own and it is echoed",
}


def annotated_request(
    address: tuple[str, int], body: Mapping[str, object], show: Callable[[str], None] = print
) -> bytes:
    """POST `body` to the chat endpoint and narrate. Returns the body of the answer."""
    data = json.dumps(body).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {address[0]}:{address[1]}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    with socket.create_connection(address, timeout=_TIMEOUT_S) as sock:
        show("   we send:")
        for line in lines:
            show(_annotated("→", line, _REQUEST_NOTES))
        show(f"   → {'':<{_COLUMN}}an empty line: the head is over, the body begins")
        show(f"   → {data.decode()}")
        started_s = time.perf_counter()
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        return _Reader(sock, started_s, show).answer()


def _annotated(arrow: str, line: str, notes: Mapping[str, str]) -> str:
    note = next((text for start, text in notes.items() if line.startswith(start)), "")
    return f"   {arrow} {line:<{_COLUMN - 2}}  {note}".rstrip()


class _Reader:
    """Reads one answer, whole or chunked."""

    def __init__(self, sock: socket.socket, started_s: float, show: Callable[[str], None]) -> None:
        self._file = sock.makefile("rb")
        self._started_s = started_s
        self._show = show
        self._num_events = 0
        self._last_ms = 0.0

    def answer(self) -> bytes:
        lines: list[str] = []
        while (line := self._file.readline().decode("latin-1").rstrip("\r\n")) != "":
            lines.append(line)
        self._show(f"   and after {self._elapsed_ms():.1f} ms receive:")
        for line in lines:
            self._show(_annotated("←", line, _ANSWER_NOTES))
        headers = dict(line.split(": ", 1) for line in lines[1:])
        if "Content-Length" in headers:
            body = self._file.read(int(headers["Content-Length"]))
            self._show(f"   ← {body.decode()}")
            return body
        return self._chunks()

    def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while size := int(self._file.readline(), 16):
            piece = self._file.read(size)
            self._file.readline()
            pieces.append(piece)
            self._show_piece(size, piece)
        self._show(f"   ← {'0':<{_COLUMN}}a chunk of length 0: the answer is over, the connection lives on")
        return b"".join(pieces)

    def _show_piece(self, size: int, piece: bytes) -> None:
        now_ms = self._elapsed_ms()
        events = [text for text in piece.decode().split("\n\n") if text]
        is_shown = self._num_events < _MAX_SHOWN_EVENTS or any(_is_notable(text) for text in events)
        if is_shown:
            self._show(f"   ← {now_ms:7.1f} ms (+{now_ms - self._last_ms:.1f})  chunk of {size:x} hex = {size} bytes")
            for text in events:
                self._show(f"       {_shortened(text):<{_COLUMN - 6}}  {_meaning(text)}")
        elif self._num_events == _MAX_SHOWN_EVENTS:
            self._show("     … more of the same: one event per token …")
        self._num_events += 1
        self._last_ms = now_ms

    def _elapsed_ms(self) -> float:
        return (time.perf_counter() - self._started_s) * 1e3


def _is_notable(text: str) -> bool:
    """The events at the end of a stream, each of which means something of its own."""
    if text == "data: [DONE]":
        return True
    chunk = json.loads(text.removeprefix("data: "))
    return "error" in chunk or not chunk["choices"] or chunk["choices"][0]["finish_reason"] is not None


def _shortened(text: str) -> str:
    """What differs between the events of a stream; the rest repeats."""
    if text == "data: [DONE]" or '"error"' in text:
        return text
    chunk = json.loads(text.removeprefix("data: "))
    if not chunk["choices"]:
        usage = chunk["usage"]
        return 'data: {…"choices":[],"usage":' + json.dumps({key: usage[key] for key in list(usage)[:2]})[:-1] + ", …}}"
    choice = chunk["choices"][0]
    reason = choice["finish_reason"]
    tail = "" if reason is None else f',"finish_reason":"{reason}"'
    return 'data: {…"delta":' + json.dumps(choice["delta"], ensure_ascii=False) + tail + "…}"


def _meaning(text: str) -> str:
    if text == "data: [DONE]":
        return "nothing follows"
    if '"usage":{' in text:
        return "usage, because stream_options asked for it"
    if '"role"' in text:
        return "first the role"
    if '"finish_reason":null' in text:
        return "text that cannot be part of a stop string any more"
    return "why it ended"
