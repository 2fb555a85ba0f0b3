"""Reading from a socket with a total deadline, into one buffer, so that pipelined requests keep their order.

The deadline bounds the whole of what is being read. A timeout per `recv` would let a client that sends one byte a
second hold a thread for hours.
"""

import math
import re
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from aie_server.config import HttpLimits
from aie_server.http.framing import FramingError
from aie_server.http.leaving import LeaveSignal

__all__ = ["DeadlineReader", "PeerClosedError", "ReadTimeoutError"]

_RECV_BYTES: Final = 64 * 1024
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")


class PeerClosedError(Exception):
    """The peer sent its last byte (or the connection broke) before what we wanted was complete."""


class ReadTimeoutError(Exception):
    """The deadline passed before what we wanted was complete."""


class DeadlineReader:
    """One connection's input. Not thread-safe: it belongs to the connection's thread.

    The socket does not block, and is polled with what is left of a deadline: a timeout of the socket's own would cost
    another system call for each read, and with each the interpreter's lock changes hands.
    """

    def __init__(self, sock: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._clock = clock
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def wait_for_first_byte(
        self, timeout_s: float, leaving: LeaveSignal | None = None, leaving_timeout_s: float = 0.0
    ) -> None:
        """Returns as soon as there is something to read. An empty line between two requests is skipped (RFC 9112,
        2.2). leaving: from when on there are only `leaving_timeout_s` left to wait."""
        deadline = self._clock() + timeout_s
        poll = None
        if leaving is not None:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            poll.register(leaving, select.POLLIN)
        while True:
            if self._buffer[:2] == b"\r\n":
                del self._buffer[:2]
            elif self._buffer and self._buffer != b"\r":
                return
            else:
                if poll is not None and leaving is not None and leaving.is_set:
                    poll, deadline = None, min(deadline, self._clock() + leaving_timeout_s)
                self._receive(deadline, poll)

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
        if len(self._buffer) == num_bytes:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
        with memoryview(self._buffer) as view:
            data = bytes(view[:num_bytes])
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

    def _receive(self, deadline: float, poll: "select.poll | None" = None) -> None:
        """What is there, or nothing if only the other thing that `poll` looks at has happened."""
        remaining_s = deadline - self._clock()
        if remaining_s <= 0:
            raise ReadTimeoutError
        try:
            if not (poll or self._poll).poll(math.ceil(remaining_s * 1e3)):
                return  # the next call finds the deadline passed
            data = self._sock.recv(_RECV_BYTES)
        except BlockingIOError:
            return
        except (OSError, ValueError):
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
