"""Reading from a socket with a total deadline, into one buffer, so that pipelined requests keep their order.

The deadline bounds the whole of what is being read. A timeout per `recv` would let a client that sends one byte a
second hold a thread for hours.
"""

import re
import socket
import time
from collections.abc import Callable
from typing import Final

from aie_server.config import HttpLimits
from aie_server.http.framing import FramingError

__all__ = ["DeadlineReader", "PeerClosedError", "ReadTimeoutError"]

_RECV_BYTES: Final = 64 * 1024
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")


class PeerClosedError(Exception):
    """The peer sent its last byte (or the connection broke) before what we wanted was complete."""


class ReadTimeoutError(Exception):
    """The deadline passed before what we wanted was complete."""


class DeadlineReader:
    """One connection's input. Not thread-safe: it belongs to the connection's thread."""

    def __init__(self, sock: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._sock = sock
        self._clock = clock
        self._buffer = bytearray()

    def wait_for_first_byte(self, timeout_s: float) -> None:
        """Returns as soon as there is something to read. An empty line between two requests is skipped (RFC 9112,
        2.2)."""
        deadline = self._clock() + timeout_s
        while True:
            if self._buffer[:2] == b"\r\n":
                del self._buffer[:2]
            elif self._buffer and self._buffer != b"\r":
                return
            else:
                self._receive(deadline)

    def read_head(self, limits: HttpLimits) -> bytes:
        """Everything up to the empty line, which is consumed and not returned. Raises `FramingError` for a head that
        is too long or has a line ended by LF alone, as soon as that is seen."""
        deadline = self._clock() + limits.header_timeout_s
        seen = 0
        while True:
            end = self._buffer.find(b"\r\n\r\n", max(0, seen - 3))
            if _BARE_LF.search(self._buffer, max(0, seen - 1), len(self._buffer) if end < 0 else end):
                raise FramingError("A line ends with LF alone; HTTP lines end with CR LF.", code="bad_header")
            if end > limits.max_head_bytes or (end < 0 and len(self._buffer) > limits.max_head_bytes):
                self._raise_too_long(limits)
            if end >= 0:
                head = bytes(self._buffer[:end])
                del self._buffer[: end + 4]
                return head
            seen = len(self._buffer)
            self._receive(deadline)

    def read_line(self, max_bytes: int, deadline: float) -> bytes:
        """One line without its CR LF, for chunk headers. Raises `FramingError` if it is longer than `max_bytes`."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > max_bytes:
                raise FramingError("A chunk header is too long.", code="bad_chunk")
            self._receive(deadline)
        line = bytes(self._buffer[:end])
        if end > max_bytes or not line.endswith(b"\r"):
            raise FramingError("A chunk header is malformed.", code="bad_chunk")
        del self._buffer[: end + 1]
        return line[:-1]

    def read_exactly(self, num_bytes: int, deadline: float) -> bytes:
        while len(self._buffer) < num_bytes:
            self._receive(deadline)
        data = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return data

    def discard(self, max_bytes: int, timeout_s: float) -> None:
        """Throw away what the peer still sends, until it stops, `max_bytes` came or the time is over. Raises
        nothing."""
        deadline = self._clock() + timeout_s
        num_bytes = len(self._buffer)
        try:
            while num_bytes < max_bytes:
                self._buffer.clear()
                self._receive(deadline)
                num_bytes += len(self._buffer)
        except (PeerClosedError, ReadTimeoutError):
            pass
        self._buffer.clear()

    def _receive(self, deadline: float) -> None:
        remaining_s = deadline - self._clock()
        if remaining_s <= 0:
            raise ReadTimeoutError
        try:
            self._sock.settimeout(remaining_s)
            data = self._sock.recv(_RECV_BYTES)
        except TimeoutError:
            raise ReadTimeoutError from None
        except OSError:
            raise PeerClosedError from None
        if not data:
            raise PeerClosedError
        self._buffer += data

    def _raise_too_long(self, limits: HttpLimits) -> None:
        first_line = self._buffer.find(b"\r\n")
        if first_line < 0 or first_line > limits.max_request_line_bytes:
            raise FramingError("The request line is too long.", status=414, code="uri_too_long")
        raise FramingError(
            f"The headers are longer than {limits.max_head_bytes} bytes.", status=431, code="headers_too_large"
        )
