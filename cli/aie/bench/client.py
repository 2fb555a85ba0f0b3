"""One streaming request on the wire, timed: HTTP/1.1 and server-sent events by hand over asyncio streams.

Written here rather than taken from a library because the clock must sit as close to the socket as it can, and because
the load generator is part of what is taught. Times are seconds on `time.perf_counter`.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from aie_engine import InvalidInputError

__all__ = [
    "HUNG_UP",
    "TOO_LATE",
    "Endpoint",
    "Outcome",
    "OutcomeKind",
    "connect",
    "describe_error",
    "error_message",
    "get_text",
    "read_body",
    "read_head",
    "send_streaming",
]

OutcomeKind = Literal["answered", "rejected", "timed out", "cut", "cancelled", "failed"]

HUNG_UP = "hung up, as asked"
TOO_LATE = "no complete answer within"
_MAX_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    base_path: str  # "" or such as "/api"
    tls: bool
    api_key: str | None = None

    @property
    def url(self) -> str:
        """As `parse` reads it."""
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}{self.base_path}"

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> "Endpoint":
        """From `http://host:port[/base]`, with or without a trailing `/v1`."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError:  # half a bracket; a port that is none
            parts, port = urlsplit(""), -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise InvalidInputError(f"--url is {url!r}; give something like http://127.0.0.1:8000.", param="url")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), path, tls, api_key)


@dataclass(slots=True)
class Outcome:
    """What became of one request. `error` is None when it was answered in full."""

    sent_s: float = 0.0
    first_token_s: float | None = None  # first event with text
    last_token_s: float | None = None
    end_s: float = 0.0
    num_prompt_tokens: int = 0  # as the server counts them
    num_output_tokens: int = 0
    status: int = 0
    error: str | None = None
    gaps_s: list[float] = field(default_factory=list)  # between one event with text and the next
    due_s: float | None = None  # when it ought to have been sent, where there was a schedule
    first_byte_s: float | None = None  # of the answer's body
    turn: int = 0  # of a conversation
    session: str | None = None
    pieces: list[str] | None = None  # the text, where it is wanted

    @property
    def kind(self) -> OutcomeKind:
        """What sort of end it took."""
        if self.error is None:
            return "answered"
        if self.error == HUNG_UP:
            return "cancelled"
        if self.status in (429, 503):
            return "rejected"
        if self.error.startswith(TOO_LATE):
            return "timed out"
        return "cut" if self.first_byte_s is not None and self.status == 200 else "failed"

    @property
    def lag_s(self) -> float:
        """How late it was sent: the load generator's own fault, or that of a cap on requests in flight."""
        return 0.0 if self.due_s is None else self.sent_s - self.due_s

    @property
    def ttfr_s(self) -> float | None:
        """Time to first response: the first byte of the body, whatever it says."""
        return None if self.first_byte_s is None else self.first_byte_s - self.sent_s

    @property
    def ttft_from_schedule_s(self) -> float | None:
        """Time to first token, from when the request was due."""
        return None if self.ttft_s is None else self.ttft_s + self.lag_s

    @property
    def e2e_from_schedule_s(self) -> float:
        """To the last byte, from when the request was due."""
        return self.e2e_s + self.lag_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        """From the first byte sent to the last byte read."""
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; undefined for a single token."""
        if self.first_token_s is None or self.last_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)


async def send_streaming(
    endpoint: Endpoint,
    path: str,
    body: dict[str, object],
    *,
    timeout_s: float,
    hang_up_after: int | None = None,
    due_s: float | None = None,
    into: Outcome | None = None,
) -> Outcome:
    """Sends `body` and reads the stream to its end, or closes the connection after so many events. Never raises for
    what a server does: it goes into `error`. due_s: when it ought to be sent, on `time.perf_counter`. into: what is
    filled and given back, for callers who watch it meanwhile."""
    outcome = Outcome() if into is None else into
    outcome.sent_s, outcome.due_s = time.perf_counter(), due_s
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(endpoint, path, json.dumps(body).encode(), outcome, hang_up_after)
    except TimeoutError:
        outcome.error = f"{TOO_LATE} {timeout_s:g} s"
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        outcome.error = describe_error(error)
    outcome.end_s = time.perf_counter()
    if outcome.error is None and outcome.first_token_s is None:
        outcome.error = "the answer had no text"
    return outcome


async def get_text(endpoint: Endpoint, path: str, *, timeout_s: float = 5.0) -> tuple[int, str]:
    """Status and body of a GET. Raises OSError, TimeoutError or ValueError when there is no HTTP answer."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await connect(endpoint)
        try:
            writer.write(_head(endpoint, "GET", path, None))
            status, headers = await read_head(reader)
            chunks = [chunk async for chunk in read_body(reader, headers)]
            return status, b"".join(chunks).decode("utf-8", "replace")
        finally:
            writer.close()


async def _exchange(
    endpoint: Endpoint, path: str, body: bytes, outcome: Outcome, hang_up_after: int | None = None
) -> None:
    reader, writer = await connect(endpoint)
    try:
        writer.write(_head(endpoint, "POST", path, len(body), outcome.session) + body)
        if hang_up_after == 0:
            await writer.drain()
            outcome.error = HUNG_UP
            return
        outcome.status, headers = await read_head(reader)
        if outcome.status != 200:
            text = b"".join([chunk async for chunk in read_body(reader, headers)])
            outcome.error = f"HTTP {outcome.status}: {error_message(text)}"
            return
        done = False
        num_events = 0
        async for event in _events(_timed(read_body(reader, headers), outcome)):
            if event == b"[DONE]":
                done = True
                continue
            _take_event(json.loads(event), outcome)
            num_events += 1
            if num_events == hang_up_after:
                outcome.error = HUNG_UP
                return
        if not done and outcome.error is None:
            outcome.error = "the stream was cut off"
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _timed(pieces: AsyncIterator[bytes], outcome: Outcome) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if outcome.first_byte_s is None:
            outcome.first_byte_s = time.perf_counter()
        yield piece


def _take_event(event: object, outcome: Outcome) -> None:
    if not isinstance(event, dict):
        raise ValueError("an event that is no JSON object")
    if "error" in event:
        outcome.error = f"error event: {error_message(json.dumps(event).encode())}"
        return
    usage = event.get("usage")
    if isinstance(usage, dict):
        outcome.num_prompt_tokens = int(usage.get("prompt_tokens") or 0)
        outcome.num_output_tokens = int(usage.get("completion_tokens") or 0)
    choices = event.get("choices") or []
    if choices and (text := choices[0].get("text") or (choices[0].get("delta") or {}).get("content")):
        now = time.perf_counter()
        if outcome.pieces is not None:
            outcome.pieces.append(str(text))
        if outcome.last_token_s is None:
            outcome.first_token_s = now
        else:
            outcome.gaps_s.append(now - outcome.last_token_s)
        outcome.last_token_s = now


async def connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection. Raises OSError."""
    context = ssl.create_default_context() if endpoint.tls else None
    return await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=1 << 20)


def _head(endpoint: Endpoint, method: str, path: str, length: int | None, session: str | None = None) -> bytes:
    lines = [f"{method} {endpoint.base_path}{path} HTTP/1.1", f"Host: {endpoint.host}:{endpoint.port}",
             "User-Agent: aie-bench", "Accept: text/event-stream, */*", "Connection: close"]  # fmt: skip
    if endpoint.api_key:
        lines.append(f"Authorization: Bearer {endpoint.api_key}")
    if session is not None:
        lines.append(f"x-session-id: {session}")
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status, and headers by their names in small letters. Raises ValueError for what is not HTTP."""
    head = await reader.readuntil(b"\r\n\r\n")
    if len(head) > _MAX_HEADER_BYTES:
        raise ValueError("response headers are too long")
    first, *rest = head.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
        raise ValueError("the answer is not HTTP/1.1")
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(parts[1]), headers


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The body in the pieces in which it arrives."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := _chunk_size(await reader.readuntil(b"\n")):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while piece := await reader.read(1 << 16):
            yield piece


def _chunk_size(line: bytes) -> int:
    return int(line.split(b";")[0], 16)


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The `data:` payloads of an event stream."""
    buffer = b""
    async for piece in pieces:
        buffer += piece.replace(b"\r\n", b"\n")
        while (end := buffer.find(b"\n\n")) >= 0:
            event, buffer = buffer[:end], buffer[end + 2 :]
            data = b"\n".join(line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                yield data


def error_message(body: bytes) -> str:
    """The message inside OpenAI's error object, or the beginning of whatever came."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:200]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def describe_error(error: BaseException) -> str:
    """A few words, the same for the same fault, so that they can be counted."""
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection was closed in mid-answer"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"garbled answer ({error})"
