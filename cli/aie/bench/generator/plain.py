"""A connection without TLS.

asyncio's transports take several turns of the loop from a connection to the first byte sent; among forty requests that
are due at once all forty take the first turn before any takes the second, so that the first would go out with the last,
and the wait would count as the server's. Here a request is connected and written in one go, and the next one begins
after that.
"""

import socket
import time
from contextlib import suppress
from typing import Any

from aie.bench.generator.exchange import Exchange
from aie.bench.generator.pacing import Watch

__all__ = ["PlainConnection"]

_READ_BYTES = 64 * 1024


class PlainConnection:
    """Hands what it reads to the exchange that it serves, with the time.

    All connections of a process read into one buffer, since what is read is taken out at once: a buffer for each read
    costs more than the read."""

    __slots__ = ("_exchange", "_is_closing", "_is_writing", "_number", "_socket", "_unsent", "_watch", "is_fresh",
                 "is_open")  # fmt: skip
    _buffer = memoryview(bytearray(_READ_BYTES))

    def __init__(self, watch: Watch, connecting: socket.socket) -> None:
        """connecting: a socket that does not block, and is connected or will be."""
        self._watch, self._socket, self._number = watch, connecting, connecting.fileno()
        self._exchange: Exchange | None = None
        self._unsent = b""
        self._is_closing = self._is_writing = False
        self.is_fresh = True  # no exchange has ended on it yet
        self.is_open = True
        watch.reads(self._number, self._readable)

    @classmethod
    def to(cls, watch: Watch, address: tuple[Any, ...]) -> "PlainConnection":
        """Does not wait until it is connected. Raises OSError."""
        family, kind, protocol, _, where = address
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            with suppress(OSError):
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(BlockingIOError):
                made.connect(where)
            return cls(watch, made)
        except BaseException:
            made.close()
            raise

    def send(self, data: bytes, exchange: Exchange) -> None:
        """Its answer is awaited through `exchange.done`."""
        assert self._exchange is None, "one exchange at a time"
        self._exchange, self._unsent = exchange, data
        self._write()
        if self._unsent:
            self._watch.writes(self._number, self._writable)
            self._is_writing = True

    def close(self) -> None:
        """What was written still goes out; what is read from now on concerns nobody."""
        self._exchange = None
        self.is_open = False
        self._is_closing = True
        if not self._unsent:
            self._shut()

    def abort(self) -> None:
        """At once."""
        self._exchange, self._unsent = None, b""
        self.close()

    def _readable(self) -> bool:
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._lost(error)
            return True
        now_s = time.perf_counter()
        exchange = self._exchange
        if not size or exchange is None:
            self._lost(None)  # by the server; or it answers what nobody asked
            return True
        exchange.take(bytes(self._buffer[:size]), now_s)
        if not exchange.done.done():
            return False
        self._exchange, self.is_fresh = None, False
        if self._unsent:  # answered before it was asked in full: the rest interests nobody
            self.abort()
        return True

    def _writable(self) -> None:
        self._write()
        if not self._unsent:
            self._stop_writing()
            if self._is_closing:
                self._shut()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = b""  # it hears no more; what it may have said before is still to be read
        except OSError as error:
            self._unsent = b""
            self._lost(error)

    def _lost(self, error: OSError | None) -> None:
        now_s = time.perf_counter()
        exchange, self._exchange = self._exchange, None
        self.abort()
        if exchange is not None:
            exchange.lose(error, now_s)

    def _shut(self) -> None:
        if self._socket.fileno() >= 0:
            self._stop_writing()
            self._watch.forget(self._number)
            self._socket.close()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._watch.writes_no_more(self._number)
