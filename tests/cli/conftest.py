"""Fixtures of the command line's tests."""

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar

import pytest

from aie.bench.generator import Endpoint


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a scripted server gets it."""

    method: str
    path: str
    headers: dict[str, str]  # by names in small letters
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Scripted:
    """A server in the test's own event loop, whose every delay and fault is known: `async with` it.

    answer: called for each request; the connection is closed when it returns, or, with `keeps`, serves the next."""

    HEAD: ClassVar[bytes] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    END: ClassVar[bytes] = b"data: [DONE]\n\n"

    def __init__(
        self, answer: Callable[[Asked, asyncio.StreamWriter], Awaitable[None]], *, keeps: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self.num_connections = 0
        self._answer, self._keeps, self._tls = answer, keeps, tls

    @staticmethod
    def event(payload: object) -> bytes:
        return b"data: " + json.dumps(payload).encode() + b"\n\n"

    @classmethod
    def text(cls, text: str = "a") -> bytes:
        """Of a completion."""
        return cls.event({"choices": [{"index": 0, "text": text}]})

    @classmethod
    def usage(cls, output: int, prompt: int = 5) -> bytes:
        return cls.event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})

    async def __aenter__(self) -> "Scripted":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = Endpoint("127.0.0.1", port, "", self._tls is not None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                await self._answer(await _asked(reader), writer)
                await writer.drain()
                if not self._keeps:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()


async def _asked(reader: asyncio.StreamReader) -> Asked:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines if line)}
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


class Threaded(ThreadingHTTPServer):
    """A server in threads of its own, for whole commands, which have an event loop of theirs. answer: gives status and
    body; connections stay open, unless `closes`."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, answer: Callable[[Asked], tuple[int, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.closes = answer, False
        self.asked: list[Asked] = []
        self.num_connections = 0
        self.endpoint = Endpoint("127.0.0.1", self.server_address[1], "", False)

    def of(self, method: str) -> list[Asked]:
        """What came with this method."""
        return [one for one in self.asked if one.method == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Threaded

    def setup(self) -> None:
        super().setup()
        self.server.num_connections += 1

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, raw)
        self.server.asked.append(asked)
        status, body = self.server.answer(asked)
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n"
        if self.server.closes:
            head, self.close_connection = head + "Connection: close\r\n", True
        self.wfile.write(f"{head}\r\n".encode() + body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve


@pytest.fixture
def threaded() -> Iterator[Callable[[Callable[[Asked], tuple[int, bytes]]], Threaded]]:
    """Starts a server that answers so; it ends with the test."""
    begun: list[tuple[Threaded, threading.Thread]] = []

    def start(answer: Callable[[Asked], tuple[int, bytes]]) -> Threaded:
        server = Threaded(answer)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        begun.append((server, thread))
        return server

    yield start
    for server, thread in begun:
        server.shutdown()
        thread.join()
        server.server_close()
