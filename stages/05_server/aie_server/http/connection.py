"""One connection: requests in, answers out, one after another, until either side has had enough.

`BaseHTTPRequestHandler` gives the life cycle (setup, handle, finish) and the reason phrases. Its parsing is not used:
it accepts a second Content-Length, ignores Transfer-Encoding, and waits for ever (see framing.py and reader.py).
"""

import contextlib
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from typing import Final, Protocol

from aie_engine import AieError
from aie_server.access_log import AccessRecord
from aie_server.config import HttpLimits
from aie_server.http.body import check_body_is_acceptable, read_body
from aie_server.http.framing import FramingError, RequestHead, parse_head
from aie_server.http.leaving import LeaveSignal
from aie_server.http.messages import ClientGoneError, Request, Response, StreamingResponse
from aie_server.http.peer import PeerWatch
from aie_server.http.reader import DeadlineReader, PeerClosedError, ReadTimeoutError
from aie_server.http.request_id import choose_request_id
from aie_server.http.router import Route

__all__ = ["Application", "Connection", "ConnectionState"]

_log = logging.getLogger("aie.server")
_MAX_KNOWN_BYTES: Final = 4096  # of a head that is kept for the next request


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    """As in the header `Date`."""
    return formatdate(second, usegmt=True)


class Application(Protocol):
    """What a connection needs to know of the server above it."""

    @property
    def limits(self) -> HttpLimits: ...

    @property
    def is_draining(self) -> bool: ...

    def select(self, head: RequestHead, address: str) -> tuple[Route, str]:
        """The route and the client's key, before the body is read. Raises `AieError` (404, 405, 401)."""
        ...

    def error_response(self, error: BaseException, head: RequestHead | None) -> Response:
        """head: what was asked, where that came to be known; it decides whose form the answer has."""
        ...

    def finished(self, record: AccessRecord) -> None: ...


@dataclass(slots=True)
class ConnectionState:
    """What the listener sees of a connection: an idle one may be closed at any time."""

    is_idle: bool = True
    is_leaving: bool = False  # has been asked to end


@dataclass(slots=True)
class _Exchange:
    """Where one request stands."""

    request_id: str
    started_s: float
    head: RequestHead | None = None
    route: Route | None = None
    body_is_read: bool = False
    is_out_of_step: bool = False  # where the next request would start is unknown
    status: int = 0
    num_bytes: int = 0  # sent as body
    error: str = ""  # the code of the one that it is answered with
    is_recorded: bool = False


class Connection(BaseHTTPRequestHandler):
    """Runs in its own thread, from construction to return."""

    def __init__(
        self,
        sock: socket.socket,
        address: tuple[str, int],
        app: Application,
        state: ConnectionState,
        leaving: LeaveSignal,
    ) -> None:
        self._app = app
        self._leaving = leaving
        self._limits = app.limits
        self._sock = sock
        self._address = address[0]
        self._state = state
        super().__init__(sock, address, server=None)  # type: ignore[arg-type]  # which runs setup, handle and finish

    def setup(self) -> None:
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_bytes)
        self._reader = DeadlineReader(self._sock)
        self._peer = PeerWatch(self._sock)
        self._known: tuple[bytes, RequestHead] | None = None
        self.close_connection = False

    def finish(self) -> None:
        """The socket is closed by the listener, which opened it."""

    def handle(self) -> None:
        try:
            while not self.close_connection:
                # The client was told that it may go on: a request that it sent before it knows better is answered.
                self._reader.wait_for_first_byte(
                    self._limits.idle_timeout_s, self._leaving, self._limits.leaving_timeout_s
                )
                self._state.is_idle = False
                self._exchange()
                self._state.is_idle = True
        except (PeerClosedError, ReadTimeoutError, OSError):
            pass  # between requests, or while writing: there is nobody to tell

    def _exchange(self) -> None:
        """One request. Whatever happens, it is answered if anybody listens, and recorded once."""
        self._blocked_s = 0.0
        exchange = _Exchange("", time.monotonic())
        try:
            response = self._respond(exchange)
            self.close_connection = self._must_close(exchange)
            if isinstance(response, Response):
                self._send(exchange, response)
            else:
                self._send_stream(exchange, response)
        except (ClientGoneError, OSError):  # a reset, a broken pipe, or a write that took longer than send_timeout_s
            self.close_connection = True
            exchange.status = 499
        finally:
            self._record(exchange)

    def _respond(self, exchange: _Exchange) -> Response | StreamingResponse:
        try:
            return self._handle_request(exchange)
        except (ClientGoneError, PeerClosedError):
            raise ClientGoneError from None
        except ReadTimeoutError:
            exchange.is_out_of_step = True
            timeout = FramingError("The request did not arrive in time.", status=408, code="request_timeout")
            return self._refusal(exchange, timeout)
        except FramingError as error:
            exchange.is_out_of_step = True
            return self._refusal(exchange, error)
        except AieError as error:
            return self._refusal(exchange, error)
        except Exception as error:
            _log.exception(
                "request %s failed", exchange.request_id, extra={"fields": {"request_id": exchange.request_id}}
            )
            return self._refusal(exchange, error)

    def _refusal(self, exchange: _Exchange, error: Exception) -> Response:
        """What failed before its name was read gets one, too, by which its line in the log is found."""
        exchange.request_id = exchange.request_id or choose_request_id(None)
        exchange.error = error.code if isinstance(error, AieError) else "internal_error"
        return self._app.error_response(error, exchange.head)

    def _handle_request(self, exchange: _Exchange) -> Response | StreamingResponse:
        head = self._parse(self._reader.read_head(self._limits))
        exchange.request_id = choose_request_id(head.headers.get("x-request-id"))
        exchange.head = head
        route, client_key = self._app.select(head, self._address)
        exchange.route = route
        check_body_is_acceptable(head, self._limits)
        if head.expects_continue and head.has_body:
            self._ask_for_body()
        deadline = time.monotonic() + self._limits.body_timeout_s
        body = read_body(self._reader, head, self._limits, deadline)
        exchange.body_is_read = True
        return route.handler(
            Request(head, body, exchange.request_id, client_key, self._peer.is_gone, exchange.started_s)
        )

    def _parse(self, data: bytes) -> RequestHead:
        """A program that asks again sends the same head again, byte for byte; what it means has not changed."""
        if self._known is not None and self._known[0] == data:
            return self._known[1]
        head = parse_head(data, self._limits)
        self._known = (data, head) if len(data) <= _MAX_KNOWN_BYTES else None
        return head

    def _ask_for_body(self) -> None:
        try:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        except OSError:
            raise ClientGoneError from None

    def _must_close(self, exchange: _Exchange) -> bool:
        head = exchange.head
        return head is None or self._has_unread_input(exchange) or self._app.is_draining or not head.keep_alive

    # Writing: headers and first bytes leave in one call, so that small answers are one packet.

    def _send(self, exchange: _Exchange, response: Response) -> None:
        exchange.status, exchange.num_bytes = response.status, len(response.body)
        headers = {"Content-Type": response.content_type, "Content-Length": str(len(response.body)), **response.headers}
        if response.status == 204:
            del headers["Content-Type"], headers["Content-Length"]
        body = b"" if self._is_head(exchange) else response.body
        self._record(exchange)  # before the client can know, so that whoever asks for the metrics next finds it there
        self._write(self._head_bytes(exchange, response.status, headers) + body)
        if self._has_unread_input(exchange):
            self._linger()

    def _send_stream(self, exchange: _Exchange, response: StreamingResponse) -> None:
        exchange.status = response.status
        try:
            head = exchange.head
            assert head is not None
            is_chunked = head.version >= (1, 1)
            headers = {"Content-Type": response.content_type, "Cache-Control": "no-cache", **response.headers}
            if is_chunked:
                headers["Transfer-Encoding"] = "chunked"
            else:
                self.close_connection = True  # the end of the connection is the end of the body
            pending = self._head_bytes(exchange, response.status, headers)
            if not self._is_head(exchange):
                self._send_pieces(exchange, pending, response.pieces, is_chunked)
        finally:
            response.close()

    def _send_pieces(self, exchange: _Exchange, pending: bytes, pieces: Iterator[bytes], is_chunked: bool) -> None:
        send = self._write
        for piece in filter(None, pieces):  # an empty chunk would end the body
            exchange.num_bytes += len(piece)
            send(pending + (b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece))
            pending = b""
        if pending or is_chunked:
            send(pending + (b"0\r\n\r\n" if is_chunked else b""))

    def _head_bytes(self, exchange: _Exchange, status: int, headers: Mapping[str, str]) -> bytes:
        phrase = self.responses[status][0] if status in self.responses else ""
        lines = [f"HTTP/1.1 {status} {phrase}", f"Date: {_date(int(time.time()))}", "Server: aie"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if exchange.request_id:
            lines.append(f"X-Request-Id: {exchange.request_id}")
        if self.close_connection:
            lines.append("Connection: close")
        elif exchange.head is not None and exchange.head.version < (1, 1):
            lines.append("Connection: keep-alive")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, data: bytes) -> None:
        """Nearly always the kernel has room for all of it, and takes it in one call."""
        try:
            num_sent = self._sock.send(data)
        except BlockingIOError:
            num_sent = 0
        if num_sent < len(data):
            began_s = time.monotonic()
            self._sock.settimeout(self._limits.send_timeout_s)
            try:
                self._sock.sendall(memoryview(data)[num_sent:])
            finally:
                self._sock.setblocking(False)
                self._blocked_s += time.monotonic() - began_s

    def _is_head(self, exchange: _Exchange) -> bool:
        return exchange.head is not None and exchange.head.method == "HEAD"

    # Endings

    def _has_unread_input(self, exchange: _Exchange) -> bool:
        head = exchange.head
        return exchange.is_out_of_step or head is None or (head.has_body and not exchange.body_is_read)

    def _linger(self) -> None:
        """Closing with unread input makes the kernel send a reset, which can destroy the answer on its way to the
        client."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._reader.discard(self._limits.max_drain_bytes, self._limits.linger_timeout_s)

    def _record(self, exchange: _Exchange) -> None:
        if exchange.is_recorded:
            return
        exchange.is_recorded = True
        head = exchange.head
        route = exchange.route.path if exchange.route is not None else "unmatched"
        self._app.finished(
            AccessRecord(
                client=self._address,
                method=head.method if head is not None else "-",
                target=head.path if head is not None else "-",
                route=route,
                status=exchange.status or 500,
                num_bytes=exchange.num_bytes,
                duration_s=time.monotonic() - exchange.started_s,
                request_id=exchange.request_id or choose_request_id(None),
                started_s=exchange.started_s,
                blocked_s=self._blocked_s,
                error=exchange.error,
                traceparent=head.headers.get("traceparent", "") if head is not None else "",
                tracestate=head.headers.get("tracestate", "") if head is not None else "",
            )
        )
