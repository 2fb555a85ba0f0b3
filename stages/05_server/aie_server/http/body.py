"""Reading a request's body: by length, or chunked with a limit on everything a client could make endless."""

import re
from typing import Final

from aie_server.config import HttpLimits
from aie_server.http.framing import FramingError, RequestHead
from aie_server.http.reader import DeadlineReader

__all__ = ["check_body_is_acceptable", "read_body"]

_CHUNK_HEADER: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_MAX_CHUNK_HEADER_BYTES: Final = 256  # extensions are allowed by the RFC and used by nobody
_MAX_TRAILERS: Final = 16
_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


def check_body_is_acceptable(head: RequestHead, limits: HttpLimits) -> None:
    """What can be refused before a single byte of the body is read. Raises `FramingError` with 411, 413 or 417."""
    if head.method in _BODY_METHODS and head.content_length is None and not head.is_chunked:
        raise FramingError(
            "A request with a body needs Content-Length or Transfer-Encoding: chunked.",
            status=411,
            code="length_required",
        )
    if head.content_length is not None and head.content_length > limits.max_body_bytes:
        raise _too_large(limits)
    if "expect" in head.headers and not head.expects_continue and head.version >= (1, 1):
        raise FramingError("The only expectation known here is 100-continue.", status=417, code="expectation_failed")


def read_body(reader: DeadlineReader, head: RequestHead, limits: HttpLimits, deadline: float) -> bytes:
    """The whole body; empty if there is none. Raises `FramingError`, `PeerClosedError` or `ReadTimeoutError`."""
    if head.is_chunked:
        return _read_chunked(reader, limits, deadline)
    return reader.read_exactly(head.content_length, deadline) if head.content_length else b""


def _read_chunked(reader: DeadlineReader, limits: HttpLimits, deadline: float) -> bytes:
    body = bytearray()
    for _ in range(limits.max_body_chunks):
        match = _CHUNK_HEADER.fullmatch(reader.read_line(_MAX_CHUNK_HEADER_BYTES, deadline))
        if match is None:
            raise FramingError("A chunk does not begin with its size in hexadecimal digits.", code="bad_chunk")
        size = int(match[1], 16)
        if size == 0:
            _skip_trailers(reader, deadline)
            return bytes(body)
        if len(body) + size > limits.max_body_bytes:
            raise _too_large(limits)
        body += reader.read_exactly(size, deadline)
        if reader.read_exactly(2, deadline) != b"\r\n":
            raise FramingError("A chunk is longer than its size says.", code="bad_chunk")
    raise FramingError(f"The body has more than {limits.max_body_chunks} chunks.", status=413, code="body_too_large")


def _skip_trailers(reader: DeadlineReader, deadline: float) -> None:
    for _ in range(_MAX_TRAILERS + 1):
        if not reader.read_line(8 * 1024, deadline):
            return
    raise FramingError(f"More than {_MAX_TRAILERS} trailers.", status=431, code="too_many_headers")


def _too_large(limits: HttpLimits) -> FramingError:
    return FramingError(f"The body is larger than {limits.max_body_bytes} bytes.", status=413, code="body_too_large")
