"""Connections to one server: opened, used by one exchange at a time, kept where that is wanted."""

import asyncio
import socket
import ssl
import time
from contextlib import suppress
from typing import Any

from aie.bench.generator.endpoint import Endpoint
from aie.bench.generator.exchange import Exchange

__all__ = ["Connection", "Connections"]


_READ_BYTES = 64 * 1024


class Connection(asyncio.BufferedProtocol):
    """Hands what it reads to the exchange that it serves, with the time.

    All connections of an event loop read into one buffer, since what is read is taken out at once: a buffer for each
    read costs more than the read."""

    _buffer = memoryview(bytearray(_READ_BYTES))

    __slots__ = ("_exchange", "_transport", "is_fresh", "is_open")

    def __init__(self) -> None:
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self.is_fresh = True  # no exchange has ended on it yet
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
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


class Connections:
    """Opens them, and keeps those that may serve again."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._tls = ssl.create_default_context() if endpoint.tls else None
        self._addresses: list[tuple[Any, ...]] = []  # the one that answered last comes first
        self._kept: list[Connection] = []

    def take(self) -> Connection | None:
        """One that is open."""
        while self._kept:
            connection = self._kept.pop()
            if connection.is_open:
                return connection
        return None

    def keep(self, connection: Connection) -> None:
        """For the next one who takes."""
        self._kept.append(connection)

    def close(self) -> None:
        """All that are kept."""
        while self._kept:
            self._kept.pop().close()

    async def open(self) -> Connection:
        """A new one. Raises OSError."""
        loop = asyncio.get_running_loop()
        connected = await self._connect(loop)
        name = self._endpoint.host if self._tls is not None else None
        _, connection = await loop.create_connection(Connection, sock=connected, ssl=self._tls, server_hostname=name)
        return connection

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        if not self._addresses:
            self._addresses = await self._resolve(loop)
        failure: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(self._addresses):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                with suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = failure or error
                continue
            except BaseException:
                sock.close()
                raise
            if number:
                self._addresses.insert(0, self._addresses.pop(number))
            return sock
        raise failure or OSError("no address")

    async def _resolve(self, loop: asyncio.AbstractEventLoop) -> list[tuple[Any, ...]]:
        """Of a numeric address without the thread that names need."""
        host, port = self._endpoint.host, self._endpoint.port
        try:
            return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
        except socket.gaierror:
            return list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
