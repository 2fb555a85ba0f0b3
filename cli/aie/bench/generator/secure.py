"""A connection with TLS: asyncio's, since the record layer is not what this project is about."""

import asyncio
import time

from aie.bench.generator.exchange import Exchange

__all__ = ["SecureConnection"]

_READ_BYTES = 64 * 1024


class SecureConnection(asyncio.BufferedProtocol):
    """Hands what it reads to the exchange that it serves, with the time."""

    _buffer = memoryview(bytearray(_READ_BYTES))

    def __init__(self) -> None:
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self.is_fresh = True  # no exchange has ended on it yet
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        """The same for all: what is read is taken out at once."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now_s = time.perf_counter()
        exchange = self._exchange
        if exchange is None:
            self.close()  # an answer to nothing
            return
        exchange.take(bytes(self._buffer[:nbytes]), now_s)
        if exchange.done.done():
            self._exchange, self.is_fresh = None, False

    def eof_received(self) -> None:
        """The transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        now_s = time.perf_counter()
        self.is_open = False
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lose(exc, now_s)

    def send(self, data: bytes, exchange: Exchange) -> None:
        """Its answer is awaited through `exchange.done`."""
        assert self._transport is not None and self._exchange is None, "one exchange at a time"
        self._exchange = exchange
        self._transport.write(data)

    def close(self) -> None:
        """What was written still goes out; what is read from now on concerns nobody."""
        self._exchange = None
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        self._exchange = None
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
