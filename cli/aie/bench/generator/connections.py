"""Connections to one server: opened, used by one exchange at a time, kept where that is wanted."""

import asyncio
import socket
import ssl
from typing import Any

from aie.bench.generator.endpoint import Endpoint
from aie.bench.generator.pacing import watch_of
from aie.bench.generator.plain import PlainConnection
from aie.bench.generator.secure import SecureConnection

__all__ = ["Connection", "Connections"]

Connection = PlainConnection | SecureConnection


class Connections:
    """Opens them, and keeps those that may serve again."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._tls = ssl.create_default_context() if endpoint.tls else None
        self._address: tuple[Any, ...] | None = None  # as of getaddrinfo; of several the one that answers
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
        """A new one; without TLS and where the address is known, at once and without a turn of the event loop, and an
        error shows when it is used. Raises OSError."""
        loop = asyncio.get_running_loop()
        address = self._address or await self.find()
        if self._tls is None:
            return PlainConnection.to(watch_of(loop), address)
        connected = await _connected(loop, address)
        _, connection = await loop.create_connection(
            SecureConnection, sock=connected, ssl=self._tls, server_hostname=self._endpoint.host
        )
        return connection

    async def find(self) -> tuple[Any, ...]:
        """Of several addresses the first that can be connected to, which is then known; a single one is not tried out.
        Raises OSError."""
        loop = asyncio.get_running_loop()
        host, port = self._endpoint.host, self._endpoint.port
        try:  # a numeric one, without the thread that names need
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for address in found if len(found) > 1 else ():
            try:
                (await _connected(loop, address)).close()
                self._address = address
                return address
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        self._address = found[0]
        return found[0]


async def _connected(loop: asyncio.AbstractEventLoop, address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, where = address
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await loop.sock_connect(made, where)
    except BaseException:
        made.close()
        raise
    return made
