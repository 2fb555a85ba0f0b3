"""Fixtures of the command line's tests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
        self, answer: Callable[[Asked, asyncio.StreamWriter], Awaitable[None]], *, keeps: bool = False
    ) -> None:
        self.num_connections = 0
        self._answer, self._keeps = answer, keeps

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
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000)
        self.endpoint = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1], "", False)
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
