"""The port: gRPC's library carries the messages (HTTP/2, flow control, deadlines, cancelling), and is given bytes.

Every call has a thread, as every connection of the HTTP side has; beyond `max_connections` calls the library refuses
with RESOURCE_EXHAUSTED, as it does for a message above `max_body_bytes`. A call that its client cancelled, or whose
deadline passed, is no longer active, and what waits for its prediction finds that out as it does over HTTP.
"""

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any, Final
from urllib.parse import unquote

from aie_engine import AieError, EnvironmentLacksError
from aie_server.access_log import AccessRecord
from aie_server.auth import ApiKeys
from aie_server.config import HttpLimits
from aie_server.errors import AddressInUseError, error_object, retry_after_header
from aie_server.grpc.protocol import METHODS, SERVICE
from aie_server.grpc.schema import decode, encode
from aie_server.grpc.service import OPEN_METHODS, InferenceService
from aie_server.grpc.slow import SlowSenders
from aie_server.grpc.wire import WireError
from aie_server.http import Request, RequestHead
from aie_server.http.messages import ClientGoneError
from aie_server.http.request_id import choose_request_id

__all__ = ["GrpcListener", "load_grpc", "status_of"]

_log = logging.getLogger("aie.server")
_CLIENT_GONE: Final = 499
_CODES: Final[Mapping[int, str]] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    _CLIENT_GONE: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def load_grpc() -> Any:
    """The module `grpc`. Raises `EnvironmentLacksError` where it is not installed."""
    try:
        return importlib.import_module("grpc")
    except ImportError:
        raise EnvironmentLacksError(
            "The gRPC port needs the package grpcio; install it with: pip install 'aie[grpc]'."
        ) from None


def status_of(http_status: int) -> str:
    """The name of gRPC's status for an error's HTTP status."""
    return _CODES.get(http_status, "INVALID_ARGUMENT" if http_status < 500 else "INTERNAL")


class GrpcListener:
    """Binds when made, answers after `start`. Raises `EnvironmentLacksError` and `AddressInUseError`."""

    def __init__(
        self,
        host: str,
        port: int,
        service: InferenceService,
        *,
        keys: ApiKeys,
        limits: HttpLimits,
        finished: Callable[[AccessRecord], None],
    ) -> None:
        self._grpc = load_grpc()
        self.service = service
        self._keys = keys
        self._finished = finished
        self._changed = Condition()
        self._num_busy = 0  # calls whose answer is not all sent
        self._num_running = 0  # calls in our hands
        self._slow = SlowSenders(limits.body_timeout_s)
        self._threads = ThreadPoolExecutor(limits.max_connections, thread_name_prefix="aie-grpc")
        self._server = self._grpc.server(
            self._threads,
            handlers=[_Handlers(self._grpc, self)],
            maximum_concurrent_rpcs=limits.max_connections,
            options=[
                ("grpc.max_receive_message_length", limits.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", limits.max_head_bytes),
                ("grpc.compression_enabled_algorithms_bitset", 1),  # none: as over HTTP, nothing is decompressed
                ("grpc.max_connection_idle_ms", round(limits.idle_timeout_s * 1e3)),
                ("grpc.so_reuseport", 0),  # a port in use is an error, not a port shared
            ],
        )
        try:
            self.port = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._threads.shutdown()
            raise AddressInUseError(f"Port {port} of {host} cannot be had for gRPC; choose another with --grpc-port.")

    @property
    def num_busy(self) -> int:
        """Calls in progress, from their first byte to the last of their answer."""
        return self._num_busy

    def start(self) -> None:
        self._slow.start()
        self._server.start()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """True once no call is in progress."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_busy == 0, max(0.0, timeout_s))

    def close(self, timeout_s: float = 5.0) -> None:
        """Calls in progress are cancelled; waits for what works on them. A second call does nothing."""
        deadline_s = time.monotonic() + timeout_s
        self._server.stop(None).wait(timeout_s)
        self._slow.close()
        with self._changed:
            left_s = max(0.0, deadline_s - time.monotonic())
            have_ended = self._changed.wait_for(lambda: self._num_running == 0, left_s)
        self._threads.shutdown(wait=have_ended, cancel_futures=True)

    def answer(self, name: str, messages: Iterator[bytes], context: Any) -> bytes:
        """One call. Ends it by `context.abort` where there is no answer."""
        self._begin(context)
        try:
            return self._answer(name, messages, context)
        finally:
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    def _answer(self, name: str, messages: Iterator[bytes], context: Any) -> bytes:
        started_s = time.monotonic()
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        request_id = choose_request_id(metadata.get("x-request-id"))
        client, status, answer, path = _address(context.peer()), 200, b"", f"/{SERVICE}/{name}"
        failure: BaseException | None = None
        try:
            client = self._keys.client_key(metadata, client, is_open=name in OPEN_METHODS)
            head = RequestHead("POST", path, path, "", (2, 0), metadata, None, False)
            method = self.service.method(name)
            takes, gives = METHODS[name]
            request = Request(
                head, b"", request_id, client, lambda: not context.is_active(), started_s,
                patience_s=context.time_remaining(),
            )  # fmt: skip
            message = self._message(messages, context)
            answer = encode(gives, method(decode(takes, message), request))
        except ClientGoneError:
            status = _CLIENT_GONE
        except AieError as error:
            status, failure = error.status, error
        except Exception as error:
            _log.exception("gRPC call %s failed", name, extra={"fields": {"request_id": request_id}})
            status, failure = 500, error
        seconds = time.monotonic() - started_s
        code = "" if failure is None else failure.code if isinstance(failure, AieError) else "internal_error"
        self._finished(
            AccessRecord(
                client, "POST", path, path, status, len(answer), seconds, request_id, started_s, error=code,
                traceparent=metadata.get("traceparent", ""), tracestate=metadata.get("tracestate", ""),
            )
        )  # fmt: skip
        trailing = (("x-request-id", request_id),)
        context.set_trailing_metadata(trailing)
        if status == 200:
            return answer
        sentence = "The client is gone."
        if failure is not None:
            sentence = error_object(failure)["error"]["message"] or ""
            if (retry_after := retry_after_header(failure)) is not None:
                context.set_trailing_metadata((*trailing, ("retry-after", retry_after)))
        context.abort(getattr(self._grpc.StatusCode, status_of(status)), sentence)
        raise AssertionError("abort raises")

    def _message(self, messages: Iterator[bytes], context: Any) -> bytes:
        """The one that a call has."""
        try:
            with self._slow.watch(context):
                return next(messages)
        except StopIteration:
            raise WireError("The call ended without a message.") from None
        except self._grpc.RpcError:  # cancelled, by the client or as too slow, or the message was too large
            raise ClientGoneError from None

    def _begin(self, context: Any) -> None:
        with self._changed:
            self._num_busy += 1
            self._num_running += 1
        if not context.add_callback(self._end):  # ended already
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._num_busy -= 1
            self._changed.notify_all()


class _Handlers:
    """gRPC's generic handler: finds what answers a method. Bytes in, bytes out; no code was generated."""

    def __init__(self, grpc: Any, listener: GrpcListener) -> None:
        self._grpc = grpc
        self._listener = listener

    def service(self, call: Any) -> Any:
        """The handler of a call; None: not our service."""
        service, _, name = str(call.method).removeprefix("/").rpartition("/")
        if service != SERVICE:
            return None
        if name in METHODS:
            # The same on the wire as one message, but begun before that is there: see slow.py.
            return self._grpc.stream_unary_rpc_method_handler(
                lambda messages, context: self._listener.answer(name, messages, context)
            )

        def refuse(_: Iterator[bytes], context: Any) -> Iterator[bytes]:  # of streams, too, and before anything comes
            try:
                self._listener.service.method(name)
            except AieError as error:
                context.abort(self._grpc.StatusCode.UNIMPLEMENTED, str(error))
            yield b""

        return self._grpc.stream_stream_rpc_method_handler(refuse)


def _address(peer: str) -> str:
    """`ipv4:127.0.0.1:4711`, `ipv6:[::1]:4711` with its brackets quoted → the address, as the HTTP side knows it."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]").removeprefix("::ffff:") if kind in ("ipv4", "ipv6") else peer
