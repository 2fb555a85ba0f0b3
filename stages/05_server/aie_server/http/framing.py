"""From bytes to a request head, strictly (RFC 9112), and with no input or output of its own.

Why strict: two programs that disagree about where a request ends let a client smuggle a second one past the first.
So every input on which servers are known to disagree is refused and the connection closed: a bare line feed, a
folded header, a space before the colon, a second Content-Length, Content-Length together with Transfer-Encoding, a
length that is not plain digits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aie_engine import AieError
from aie_server.config import HttpLimits

__all__ = ["FramingError", "RequestHead", "parse_head"]

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
# One way to match only: blanks around the value are stripped afterwards. A pattern that shares them out between its
# parts takes cubic time on a long run of blanks, and holds the interpreter lock meanwhile.
_HEADER: Final = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")
_HOST: Final = re.compile(r"[A-Za-z0-9.\-_~%!$&'()*+,;=:\[\]]*")
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_ONLY_ONCE: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "authorization", "content-type", "expect"}
)
_MAX_LENGTH_DIGITS: Final = 18  # fits 63 bits; the body limit is far below


class FramingError(AieError):
    """The bytes are not a request that we accept. After it the connection is closed: where the next starts is
    unknown."""

    status: int  # type: ignore[misc]
    code: str  # type: ignore[misc]

    def __init__(self, message: str, *, status: int = 400, code: str = "bad_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line and headers that passed every check."""

    method: str
    target: str  # as sent
    path: str  # without query
    query: str
    version: tuple[int, int]
    headers: Mapping[str, str]  # names in lower case; repeated ones joined by ", "
    content_length: int | None  # None: not declared
    is_chunked: bool

    @property
    def has_body(self) -> bool:
        return self.is_chunked or bool(self.content_length)

    @property
    def keep_alive(self) -> bool:
        options = {option.strip().lower() for option in self.headers.get("connection", "").split(",")}
        return "close" not in options and (self.version >= (1, 1) or "keep-alive" in options)

    @property
    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue" and self.version >= (1, 1)


def parse_head(data: bytes, limits: HttpLimits) -> RequestHead:
    """`data` is everything before the empty line, lines ended by CR LF. Raises `FramingError` with the status to
    answer."""
    lines = data.split(b"\r\n")
    method, target, version = _parse_request_line(lines[0], limits)
    if len(lines) - 1 > limits.max_headers:
        raise FramingError(f"More than {limits.max_headers} headers.", status=431, code="too_many_headers")
    headers = _parse_headers(lines[1:])
    _check_host(headers, version)
    content_length, is_chunked = _body_framing(headers, version)
    path, _, query = _origin_form(target).partition("?")
    return RequestHead(method, target, path, query, version, headers, content_length, is_chunked)


def _parse_request_line(line: bytes, limits: HttpLimits) -> tuple[str, str, tuple[int, int]]:
    if len(line) > limits.max_request_line_bytes:
        raise FramingError("The request line is too long.", status=414, code="uri_too_long")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise FramingError("The first line is not an HTTP request line: METHOD SP TARGET SP HTTP/1.1.")
    version = int(match[3]), int(match[4])
    if version[0] != 1:
        raise FramingError("Only HTTP/1.1 and HTTP/1.0 are spoken here.", status=505, code="http_version")
    return match[1].decode("ascii"), match[2].decode("ascii"), version


def _parse_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise FramingError(
                "A header line is malformed: folded, without a colon, with a space before it, "
                "or with a control character.",
                code="bad_header",
            )
        name, value = match[1].decode("ascii").lower(), match[2].strip(b" \t").decode("latin-1")
        if name not in headers:
            headers[name] = value
        elif name in _ONLY_ONCE:
            raise FramingError(f"The header {name} may come only once.", code="bad_header")
        else:
            headers[name] += ", " + value
    return headers


def _check_host(headers: Mapping[str, str], version: tuple[int, int]) -> None:
    host = headers.get("host")
    if host is None:
        if version >= (1, 1):
            raise FramingError("The Host header is missing.", code="bad_header")
    elif not _HOST.fullmatch(host):
        raise FramingError("The Host header is malformed.", code="bad_header")


def _body_framing(headers: Mapping[str, str], version: tuple[int, int]) -> tuple[int | None, bool]:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or version < (1, 1):
            raise FramingError("Transfer-Encoding may not come with Content-Length or HTTP/1.0.", code="bad_framing")
        if coding.lower() != "chunked":
            raise FramingError("The only transfer coding known here is chunked.", status=501, code="bad_framing")
        return None, True
    if length is None:
        return None, False
    if not (length.isascii() and length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS):
        raise FramingError("Content-Length must be plain digits.", code="bad_framing")
    return int(length), False


def _origin_form(target: str) -> str:
    """`http://host/path` is what a client sends to a proxy; a server must accept it too (RFC 9112, 3.2.2)."""
    match = _ABSOLUTE.match(target)
    origin = target if match is None else target[match.end() :] or "/"
    if not origin.startswith(("/", "?")) and origin != "*":
        raise FramingError("The request target must be a path.")
    return origin
