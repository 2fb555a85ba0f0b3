"""Single questions to a server from this process: one streaming request, timed, and a GET.

A load test sends from processes of its own (`generator`); this is for those who ask now and then, with the same hands.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator

from aie.bench.generator import HUNG_UP, TOO_LATE, Call, Endpoint, Outcome, OutcomeKind
from aie.bench.generator.ask import Asker, request_bytes
from aie.bench.generator.faults import describe_error, error_message, http_error
from aie.bench.generator.http_reader import ResponseReader

__all__ = [
    "HUNG_UP",
    "TOO_LATE",
    "Endpoint",
    "Outcome",
    "OutcomeKind",
    "ask",
    "connect",
    "describe_error",
    "error_message",
    "get_text",
    "http_error",
    "read_head",
    "read_whole",
    "send_streaming",
]

_MAX_HEADER_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_MAX_BODY_BYTES = 64 << 20


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
    outcome.due_s = due_s
    call = Call(path, json.dumps(body).encode(), hang_up_after=hang_up_after)
    await Asker(endpoint, timeout_s).ask(call, outcome)
    return outcome


async def get_text(endpoint: Endpoint, path: str, *, timeout_s: float = 5.0) -> tuple[int, str]:
    """Status and body of a GET. Raises OSError, TimeoutError or ValueError when there is no HTTP answer."""
    async with asyncio.timeout(timeout_s):
        status, body = await ask(endpoint, Call(path, method="GET", answer="whole"))
    return status, body.decode("utf-8", "replace")


async def ask(endpoint: Endpoint, call: Call) -> tuple[int, bytes]:
    """Status and body, whatever they are. Raises OSError, ValueError or IncompleteReadError when there is no HTTP
    answer."""
    reader, writer = await connect(endpoint)
    try:
        writer.write(request_bytes(endpoint, call))
        response = ResponseReader(without_body=call.method == "HEAD")
        pieces, size = [], 0
        while not response.ended:
            data = await reader.read(_READ_BYTES)
            if not data:
                if not response.close():
                    raise asyncio.IncompleteReadError(b"", None)
                break
            pieces.append(response.feed(data))
            size += len(pieces[-1])
            if size > _MAX_BODY_BYTES:
                raise ValueError("an answer of more than 64 MiB")
        return response.status, b"".join(pieces)
    finally:
        writer.close()


async def connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection. Raises OSError."""
    context = ssl.create_default_context() if endpoint.tls else None
    return await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=1 << 20)


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
