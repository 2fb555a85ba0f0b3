"""The listening socket and the threads of its connections.

A thread per connection is the plain answer, and right for streams that mostly wait; what makes it safe is the cap.
When it is reached, or the system has no descriptors left, the oldest connections on which nothing happens give way to
those that come: a crowd that only keeps connections open keeps nobody out. When all are busy, a new one is told 503 by
the accepting thread itself, which costs one write.
"""

import contextlib
import errno
import logging
import select
import socket
import threading
import time
from collections import deque
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any, Final

import msgspec

from aie_engine import InvalidInputError
from aie_server.access_log import AccessRecord
from aie_server.errors import AddressInUseError
from aie_server.http.connection import Application, Connection, ConnectionState
from aie_server.http.leaving import LeaveSignal
from aie_server.http.request_id import choose_request_id

__all__ = ["Listener", "check_port"]

_log = logging.getLogger("aie.server")
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NUM_GIVE_WAY: Final = 16  # idle connections that end when there are no descriptors left


_TOO_MANY: Final = ("too_many_connections", "Too many connections are open.")
_LEAVING: Final = ("server_draining", "The server is shutting down; another one will answer.")


class Listener(ThreadingMixIn, TCPServer):
    """Binds at once; accepts after `start`. Raises `AddressInUseError` or, for a host that is none,
    `InvalidInputError`."""

    daemon_threads = True
    block_on_close = False  # this class keeps its own book of threads
    allow_reuse_address = True

    def __init__(self, host: str, port: int, app: Application) -> None:
        self._app = app
        self._changed = threading.Condition()  # guards the two books below, and tells when a connection has ended
        self._connections: dict[socket.socket, tuple[threading.Thread, ConnectionState]] = {}
        self._ending: deque[threading.Thread] = deque()  # done with their connection, perhaps not quite gone
        self._thread: threading.Thread | None = None
        self._leaving = LeaveSignal()  # to the connections
        self._closing = LeaveSignal()  # to the accept loop
        self._is_closed = False
        self._stopping = threading.Event()
        self.request_queue_size = app.limits.backlog
        self.address_family = _family(host, port)
        try:
            super().__init__((host, port), BaseRequestHandler)  # `finish_request` makes the real one
        except (OSError, OverflowError) as error:
            self._leaving.close()
            self._closing.close()
            raise _explain(error, host, port) from None

    @property
    def num_connections(self) -> int:
        with self._changed:
            return len(self._connections)

    @property
    def num_busy_connections(self) -> int:
        """Those with a request in progress, from its first byte to the last byte of its answer."""
        with self._changed:
            return sum(not state.is_idle for _, state in self._connections.values())

    def start(self) -> None:
        """After `close` it does nothing."""
        with self._changed:  # `close` may come from another thread, and joins this one
            if not self._is_closed:
                self._thread = threading.Thread(target=self._accept, name="aie-accept", daemon=True)
                self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Stop accepting, hang up on whoever is still connected, and wait for their threads. After `hang_up_idle` they
        have what is left of its time to say what they wanted. A second call does nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
        deadline = time.monotonic() + timeout_s
        self._stopping.set()
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._refuse_backlog()
        self.server_close()
        with self._changed:
            if self._leaving.is_set:
                leaving_s = min(timeout_s, self._app.limits.leaving_timeout_s)
                self._changed.wait_for(lambda: not self._connections, leaving_s)
            threads = [*self._ending, *(thread for thread, _ in self._connections.values())]
            for sock in self._connections:
                _shut_down(sock)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._leaving.close()
        self._closing.close()

    def hang_up_idle(self) -> None:
        """End the connections on which no request is in progress, also none that is on its way: they have
        `leaving_timeout_s` more. To hang up on a client that is just sending would be a reset."""
        self._leaving.set()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no connection has a request in progress. Meant for draining, when each connection ends with the
        request that it is at."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(state.is_idle for _, state in self._connections.values()), max(0.0, timeout_s)
            )

    def _accept(self) -> None:
        """In place of `serve_forever`, which looks only now and then whether it shall end."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(self._closing, select.POLLIN)
        while not self._closing.is_set:
            poll.poll()
            if not self._closing.is_set:
                self._accept_one()

    def _accept_one(self) -> None:
        try:
            request, client_address = self.get_request()
        except OSError:  # it is gone again, or there are no descriptors
            return
        try:
            self.process_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
            self.shutdown_request(request)

    def _refuse_backlog(self) -> None:
        """Those whom the kernel has let in and nobody has looked at: with the socket they would be reset."""
        self.socket.setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(self._app.limits.backlog):
                self._refuse(*self.socket.accept(), _LEAVING)

    # What socketserver calls

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                # The connection stays in the backlog and the socket readable: without a pause this would eat a core.
                _log.error("cannot accept a connection: %s", error.strerror)
                with self._changed:
                    for _ in range(_NUM_GIVE_WAY):
                        self._make_room()
                self._stopping.wait(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            while self._ending and not self._ending[0].is_alive():
                self._ending.popleft()
            is_full = len(self._connections) >= self._app.limits.max_connections and not self._make_room()
            if not is_full:
                thread = threading.Thread(
                    target=self.process_request_thread,
                    args=(request, client_address),
                    name=f"aie-http-{client_address[1]}",
                    daemon=True,
                )
                self._connections[request] = (thread, ConnectionState())
        if is_full:
            self._refuse(request, client_address, _TOO_MANY)
            return
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            self._forget(request)
            self._refuse(request, client_address, _TOO_MANY)

    def _make_room(self) -> bool:
        """Hang up on the oldest idle connection. False if there is none. The caller holds the lock."""
        for sock, (_, state) in self._connections.items():
            if state.is_idle and not state.is_leaving:
                state.is_leaving = True
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RD)  # its thread reads the end and leaves
                return True
        return False

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            _, state = self._connections[request]
        Connection(request, client_address, self._app, state, self._leaving)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection's thread failed in a way that nobody expected. Resets never come here."""
        _log.exception("connection from %s failed", client_address[0])

    def _forget(self, request: socket.socket) -> None:
        with self._changed:
            entry = self._connections.pop(request, None)
            if entry is not None and entry[0].ident is not None:
                self._ending.append(entry[0])
            self._changed.notify_all()

    def _refuse(self, request: socket.socket, address: Any, why: tuple[str, str]) -> None:
        """why: the error's code, and its sentence."""
        request_id = choose_request_id(None)
        answer, num_bytes = _unavailable(request_id, *why)
        with contextlib.suppress(OSError):
            request.settimeout(0)
            request.send(answer)
            request.shutdown(socket.SHUT_WR)
            request.recv(64 * 1024)  # what has arrived already would turn the close into a reset
        request.close()
        self._app.finished(
            AccessRecord(address[0], "-", "-", "unmatched", 503, num_bytes, 0.0, request_id, error=why[0])
        )


def _unavailable(request_id: str, code: str, message: str) -> tuple[bytes, int]:
    """An answer, and the length of its body."""
    error = {"message": message, "type": "overloaded_error", "param": None, "code": code}
    body = msgspec.json.encode({"error": error})
    head = (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        b"X-Request-Id: %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (request_id.encode(), len(body))
    )
    return head + body, len(body)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def check_port(host: str, port: int, *, flag: str = "--port") -> None:
    """Raises what `Listener` would raise for this address, and leaves it free: for who has much to do before."""
    probe = socket.socket(_family(host, port), socket.SOCK_STREAM)
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as for the socket that will listen
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise _explain(error, host, port, flag) from None


def _family(host: str, port: int) -> socket.AddressFamily:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise InvalidInputError(f"Cannot listen on {host!r} port {port}: {error}.", param="host") from None


def _explain(error: OSError | OverflowError, host: str, port: int, flag: str = "--port") -> Exception:
    if isinstance(error, OverflowError):
        return InvalidInputError(f"Cannot listen on port {port}: ports are from 0 to 65535.", param="port")
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"Port {port} on {host} is in use. Choose another with {flag}, or stop the program that has it."
        )
    if error.errno == errno.EACCES:
        return AddressInUseError(
            f"Port {port} needs privileges that this process lacks. Choose one from 1024 up with {flag}."
        )
    return InvalidInputError(f"Cannot listen on {host!r} port {port}: {error.strerror or error}.", param="host")
