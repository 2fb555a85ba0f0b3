"""What a handler gets and what it gives back. Nothing here knows sockets or models."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from aie_server.http.framing import RequestHead

__all__ = ["ClientGoneError", "Handler", "Request", "Response", "StreamingResponse", "json_response"]

_encoder = msgspec.json.Encoder()


class ClientGoneError(Exception):
    """The client hung up while we worked for it. Nobody is there to answer; the log calls it 499."""


@dataclass(slots=True)
class Request:
    """One request whose framing was fine and whose body, if any, is complete."""

    head: RequestHead
    body: bytes
    request_id: str
    client_key: str  # who asks, for rate limits: an API key's digest or an address
    client_gone: Callable[[], bool]  # cheap; true once the client hung up
    started_s: float = field(default_factory=time.monotonic)  # when its first byte came
    received_s: float = field(default_factory=time.monotonic)  # and its last
    patience_s: float | None = None  # after which the client gives up, where its protocol says so


@dataclass(slots=True)
class Response:
    """A whole answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class StreamingResponse:
    """An answer written piece by piece. `close` is called exactly once, whatever happens, also when no piece was
    taken."""

    pieces: Iterator[bytes]
    close: Callable[[], None]
    content_type: str = "text/event-stream; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


Handler = Callable[[Request], Response | StreamingResponse]


def json_response(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` encoded as JSON. Of a file's name that is no UTF-8, question marks are left."""
    try:
        body = _encoder.encode(value)
    except UnicodeEncodeError:
        body = json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, headers=headers or {})
