"""One request from its call to its outcome, over a connection that is kept or opened for it."""

import asyncio
import time
from contextlib import suppress

from aie.bench.generator.connections import Connection, Connections
from aie.bench.generator.endpoint import Endpoint
from aie.bench.generator.exchange import Exchange
from aie.bench.generator.faults import describe_error
from aie.bench.generator.outcome import HUNG_UP, STOPPED, TOO_LATE, Outcome
from aie.bench.generator.plan import JSON, Call

__all__ = ["Asker", "request_bytes"]


_FIND_S = 5.0


class Asker:
    """Asks one server, in one event loop."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._connections = Connections(endpoint)
        self._limits: set[asyncio.Timeout] = set()  # of what is open
        self._has_hung_up = False

    async def prepare(self) -> None:
        """Looks for the server's address, so that no request pays for that. Where there is none each one says so."""
        with suppress(OSError, ValueError):
            async with asyncio.timeout(min(_FIND_S, self._timeout_s)):
                await self._connections.find()

    def close(self) -> None:
        """Connections that were kept."""
        self._connections.close()

    def hang_up(self) -> None:
        """On all that is open: it ends as `STOPPED`."""
        self._has_hung_up = True
        now_s = asyncio.get_running_loop().time()
        for limit in self._limits:
            with suppress(RuntimeError):  # it has just run out
                limit.reschedule(now_s)

    async def ask(self, call: Call, outcome: Outcome) -> None:
        """Fills `outcome`. Never raises for what a server does: it goes into `outcome.error`."""
        outcome.sent_s = time.perf_counter()
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                self._limits.add(limit)
                await self._exchange(call, outcome)
        except TimeoutError as error:
            late = STOPPED if self._has_hung_up else f"{TOO_LATE} {self._timeout_s:g} s"
            self._failed(outcome, late if limit.expired() else describe_error(error))
        except (OSError, ValueError) as error:
            self._failed(outcome, describe_error(error, is_begun=outcome.status != 0))
        finally:
            self._limits.discard(limit)

    async def _exchange(self, call: Call, outcome: Outcome) -> None:
        request = request_bytes(self._endpoint, call, outcome.session)
        kept = self._connections.take() if call.keep_alive else None
        if kept is not None and await self._over(kept, call, outcome, request):
            return
        await self._over(await self._connections.open(), call, outcome, request)

    async def _over(self, connection: Connection, call: Call, outcome: Outcome, request: bytes) -> bool:
        """False where a kept connection turns out to have been closed, which is nobody's fault: before the first byte
        of an answer the request goes out again, on a new one. The time that this takes counts."""
        was_kept = not connection.is_fresh
        exchange = Exchange(call, outcome)
        try:
            connection.send(request, exchange)
            if call.hang_up_after == 0:
                outcome.error, outcome.end_s = HUNG_UP, time.perf_counter()
                connection.close()
                return True
            await exchange.done
            if was_kept and not exchange.is_begun and not connection.is_open:
                outcome.error = None
                return False
            may_go_on = exchange.reader.ended and exchange.reader.may_go_on
            if call.keep_alive and may_go_on and connection.is_open:
                self._connections.keep(connection)
            else:
                connection.close()
            return True
        except BaseException:  # too late, or called off: nothing more goes out, either
            connection.abort()
            raise

    def _failed(self, outcome: Outcome, error: str) -> None:
        outcome.error, outcome.end_s = error, time.perf_counter()


def request_bytes(endpoint: Endpoint, call: Call, session: str | None = None) -> bytes:
    """Head and body."""
    lines = [f"{call.method} {endpoint.base_path}{call.path} HTTP/1.1", f"Host: {endpoint.authority}",
             "User-Agent: aie-bench", f"Connection: {'keep-alive' if call.keep_alive else 'close'}"]  # fmt: skip
    if not any(line.lower().startswith("accept:") for line in call.headers):
        lines.append("Accept: text/event-stream, */*" if call.answer == "stream" else "Accept: */*")
    if endpoint.api_key:
        lines.append(f"Authorization: Bearer {endpoint.api_key}")
    if session is not None:
        lines.append(f"x-session-id: {session}")
    if call.body is not None:
        lines.append(f"Content-Length: {len(call.body)}")
    if call.body is not None or call.headers != JSON:
        lines += call.headers
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (call.body or b"")
