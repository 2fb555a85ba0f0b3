"""One streaming request on the wire, timed: HTTP/1.1 and server-sent events by hand over asyncio streams.

Written here rather than taken from a library because the clock must sit as close to the socket as it can, and because
the load generator is part of what is taught. Times are seconds on `time.perf_counter`.
"""

import asyncio
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from aie.bench.events import count_of, read_event, split_events, text_of
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
    "http_error",
    "read_head",
    "read_whole",
    "send_streaming",
]

OutcomeKind = Literal["answered", "rejected", "timed out", "cut", "cancelled", "failed"]

HUNG_UP = "hung up, as asked"
TOO_LATE = "no complete answer within"
_MAX_HEADER_BYTES = 64 * 1024
_MAX_BODY_BYTES = 64 << 20


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
        return f"http{'s' if self.tls else ''}://{self.authority}{self.base_path}"

    @property
    def authority(self) -> str:
        """As in a URL and in `Host`: an IPv6 address stands in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

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
    is_counted: bool = True  # whether the server said how many tokens the answer has

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
        outcome.error = describe_error(error, is_begun=outcome.status != 0)
    outcome.end_s = time.perf_counter()
    if outcome.error is None and outcome.first_token_s is None:
        outcome.error = "the answer had no text"
    if outcome.error is None and not outcome.num_output_tokens:
        outcome.is_counted, outcome.num_output_tokens = False, 1 + len(outcome.gaps_s)
    return outcome


async def get_text(endpoint: Endpoint, path: str, *, timeout_s: float = 5.0) -> tuple[int, str]:
    """Status and body of a GET. Raises OSError, TimeoutError or ValueError when there is no HTTP answer."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await connect(endpoint)
        try:
            writer.write(_head(endpoint, "GET", path, None))
            status, headers = await read_head(reader)
            return status, (await read_whole(reader, headers)).decode("utf-8", "replace")
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
            outcome.error = http_error(outcome.status, await read_whole(reader, headers))
            return
        done = False
        num_events = 0
        async for event in split_events(_timed(read_body(reader, headers), outcome)):
            if event == b"[DONE]":
                done = True
                continue
            _take_event(read_event(event), outcome)
            num_events += 1
            if num_events == hang_up_after:
                outcome.error = HUNG_UP
                return
        if not done and outcome.error is None:
            is_stream = num_events > 0 or "json" not in headers.get("content-type", "")
            outcome.error = "the stream was cut off" if is_stream else "one answer came, and not a stream of events"
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _timed(pieces: AsyncIterator[bytes], outcome: Outcome) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if outcome.first_byte_s is None:
            outcome.first_byte_s = time.perf_counter()
        yield piece


def _take_event(event: dict[str, Any], outcome: Outcome) -> None:
    if event.get("error") is not None:
        outcome.error = f"error event: {error_message(json.dumps(event).encode())}"
        return
    usage = event.get("usage")
    if isinstance(usage, dict):
        outcome.num_prompt_tokens = count_of(usage, "prompt_tokens")
        outcome.num_output_tokens = count_of(usage, "completion_tokens")
    if text := text_of(event):
        now = time.perf_counter()
        if outcome.pieces is not None:
            outcome.pieces.append(text)
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
    lines = [f"{method} {endpoint.base_path}{path} HTTP/1.1", f"Host: {endpoint.authority}",
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
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError("the answer is not HTTP/1.1") from None
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
        while size := await _chunk_size(reader):
            async for piece in _exactly(reader, size):
                yield piece
            await reader.readexactly(2)
    elif "content-length" in headers:
        if not headers["content-length"].isdecimal():
            raise ValueError("a Content-Length that is no number")
        async for piece in _exactly(reader, int(headers["content-length"])):
            yield piece
    else:
        while piece := await reader.read(1 << 16):
            yield piece


async def read_whole(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """The body. Raises ValueError for one without end."""
    pieces, size = [], 0
    async for piece in read_body(reader, headers):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_BODY_BYTES:
            raise ValueError("an answer of more than 64 MiB")
    return b"".join(pieces)


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    """So many bytes, as they come: an event is seen when it is there, and not when those behind it are."""
    while size:
        piece = await reader.read(min(size, 1 << 16))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(piece)
        yield piece


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    try:
        digits = (await reader.readuntil(b"\n")).split(b";")[0].strip()
    except asyncio.LimitOverrunError:
        digits = b""
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise ValueError("a chunk without its length")
    return int(digits, 16)


def http_error(status: int, body: bytes) -> str:
    """What a status other than 200 means, in a line."""
    if 300 <= status < 400:
        return f"HTTP {status}: redirects are not followed"
    message = error_message(body)
    return f"HTTP {status}: {message}" if message else f"HTTP {status}"


def error_message(body: bytes) -> str:
    """The message inside OpenAI's error object, or the beginning of whatever came: a line that a terminal can show."""
    try:
        error = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body[:1000].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:200]


def describe_error(error: BaseException, *, is_begun: bool = True) -> str:
    """A few words, the same for the same fault, so that they can be counted. is_begun: whether an answer had begun."""
    if isinstance(error, asyncio.IncompleteReadError):
        return f"the connection was closed {'in mid-answer' if is_begun else 'before an answer'}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return _describe_os_error(error) if isinstance(error, OSError) else f"garbled answer ({error})"


def _describe_os_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there: {(error.reason or 'it failed').replace('_', ' ').lower()}"
    if not isinstance(error, socket.gaierror) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio's own text says it in Python
    return error.strerror or str(error) or type(error).__name__
