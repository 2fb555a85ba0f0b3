"""The event stream of a server of ours, read by a thread while the picture is drawn from what came since the last one.

A server that has none, or lets nobody listen, is no trouble: then there are figures alone. One that goes away is tried
again, as the looks are.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Required, TypedDict

import msgspec

from aie.bench.client import Endpoint
from aie.top.words import printable

__all__ = ["EventFeed"]

_TIMEOUT_S = 30.0  # a server that is there sends a comment every ten seconds
_RETRY_S = 2.0
_MAX_KEPT = 2000  # between two looks
_MAX_LINE = 64 * 1024
_GONE_FOR_GOOD = (401, 403, 404, 405)

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class _Event(TypedDict, total=False):
    event: Required[str]
    at: Annotated[float, msgspec.Meta(ge=0, le=4e9)]
    model: str
    size: _Count
    count: _Count
    waited_ms: _Number
    compute_ms: _Number
    duration_ms: _Number
    mean_batch: _Number
    steps: _Count
    max_batch: _Count
    generated_tokens: _Count
    prompt_tokens: _Count
    lost_tokens: _Count


class EventFeed:
    """`start`, `take` and `close` in one thread; a context. wait: between two attempts; True ends it."""

    def __init__(self, endpoint: Endpoint, *, wait: Callable[[float], bool] | None = None) -> None:
        self._endpoint = endpoint
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._events: deque[Mapping[str, Any]] = deque(maxlen=_MAX_KEPT)
        self._num_lost = 0
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.is_heard = False  # the server has let us listen

    def __enter__(self) -> "EventFeed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aie-top-events", daemon=True)
            self._thread.start()

    def take(self) -> list[Mapping[str, Any]]:
        """What has come since the last time."""
        taken: list[Mapping[str, Any]] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._events.popleft())
        num_lost, self._num_lost = self._num_lost, 0
        return [{"event": "lost", "count": num_lost}, *taken] if num_lost else taken

    def close(self) -> None:
        """The thread ends at once, if it is reading, or soon."""
        self._stop.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        may_come = True
        while may_come and not self._stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                may_come = self._listen()
            self.is_heard = False
            if may_come and self._wait(_RETRY_S):
                return

    def _listen(self) -> bool:
        """Until the stream ends. False where there is none, and will be none."""
        endpoint = self._endpoint
        kind = http.client.HTTPSConnection if endpoint.tls else http.client.HTTPConnection
        connection = kind(endpoint.host, endpoint.port, timeout=_TIMEOUT_S)
        try:
            headers = {"Accept": "text/event-stream"}
            if endpoint.api_key:
                headers["Authorization"] = f"Bearer {endpoint.api_key}"
            connection.request("GET", f"{endpoint.base_path}/debug/events", headers=headers)
            self._socket = connection.sock  # the answer keeps it, where the connection ends with it
            response = connection.getresponse()
            if response.status != 200:
                return response.status not in _GONE_FOR_GOOD
            if response.headers.get_content_type() != "text/event-stream":
                return False
            self.is_heard = True
            while line := response.readline(_MAX_LINE):
                if not line.endswith(b"\n"):
                    return False  # no server of ours
                if line.startswith(b"data:"):
                    self._add(line[5:])
            return True
        finally:
            connection.close()

    def _add(self, data: bytes) -> None:
        try:
            event = printable(json.loads(data))
            msgspec.convert(event, _Event)
        except (ValueError, RecursionError):  # what is no event is not shown
            return
        self._num_lost += len(self._events) == _MAX_KEPT
        self._events.append(event)
