"""Single questions to a server from this process: one streaming request, timed, and a GET.

A load test sends from processes of its own (`generator`); this is for those who ask now and then, with the same hands.
"""

import asyncio
import json
import ssl

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
    "describe_error",
    "error_message",
    "get_text",
    "http_error",
    "send_streaming",
]

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
    context = ssl.create_default_context() if endpoint.tls else None
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
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
