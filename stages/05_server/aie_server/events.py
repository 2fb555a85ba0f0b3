"""What happens in the server, told to whoever listens at the moment (`GET /debug/events`).

Nobody may be held up by a listener: each has a queue with an end, the oldest events give way in it, and it is told how
many. Nobody pays without one: where something happens, `is_heard` is read and nothing else is done.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from aie_server.errors import ServerDrainingError, TooManyListenersError

__all__ = ["MAX_LISTENERS", "Event", "EventHub", "Listener", "Sources"]

MAX_LISTENERS: Final = 4
_MAX_QUEUED: Final = 512


@dataclass(frozen=True, slots=True)
class Event:
    """facts: values that JSON knows."""

    number: int  # counts from 1; a gap is what was lost, or another client's
    at_s: float  # since 1970
    kind: str
    facts: Mapping[str, object]
    client_key: str | None = None  # whose it is; None: everybody's

    def document(self) -> dict[str, object]:
        """As it is written."""
        return {"n": self.number, "at": round(self.at_s, 6), "event": self.kind, **self.facts}


class Sources(Protocol):
    """What has to be asked for its news, and is, while somebody listens."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class Listener:
    """`take` in the thread of who listens. client_key: whose events it may see; None: everybody's."""

    def __init__(self, client_key: str | None, max_queued: int) -> None:
        self.client_key = client_key
        self._changed = threading.Condition()
        self._queue: deque[Event] = deque(maxlen=max_queued)
        self._num_lost = 0
        self.is_closed = False

    def put(self, event: Event) -> None:
        """Never waits: the oldest gives way."""
        if event.client_key is not None and self.client_key not in (None, event.client_key):
            return
        with self._changed:
            self._num_lost += len(self._queue) == self._queue.maxlen
            self._queue.append(event)
            self._changed.notify()

    def take(self, timeout_s: float) -> list[dict[str, object]]:
        """What has come since the last time; where nothing has, after `timeout_s`, nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self.is_closed, timeout_s)
            taken = [event.document() for event in self._queue]
            self._queue.clear()
            num_lost, self._num_lost = self._num_lost, 0
        return [{"event": "lost", "count": num_lost}, *taken] if num_lost else taken

    def close(self) -> None:
        """Nothing will come any more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify()


class EventHub:
    """Thread-safe. sources: begun with the first listener, ended with the last."""

    def __init__(
        self,
        sources: Sources | None = None,
        *,
        max_listeners: int = MAX_LISTENERS,
        max_queued: int = _MAX_QUEUED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sources = sources  # may be set as long as nobody listens
        self.is_heard = False  # read it before `tell`, so that nothing is made for nobody
        self._max_listeners = max_listeners
        self._max_queued = max_queued
        self._clock = clock
        self._lock = threading.Lock()  # for the book below
        self._switch = threading.Lock()  # held while the sources are begun or ended
        self._listeners: tuple[Listener, ...] = ()
        self._number = 0
        self._is_closed = False

    def tell(self, kind: str, facts: Mapping[str, object], client_key: str | None = None) -> None:
        """From any thread; never waits for a listener."""
        with self._lock:
            self._number += 1
            event = Event(self._number, self._clock(), kind, facts, client_key)
            for listener in self._listeners:
                listener.put(event)

    def listen(self, client_key: str | None) -> Listener:
        """Raises `TooManyListenersError` and `ServerDrainingError`."""
        listener = Listener(client_key, self._max_queued)
        with self._switch:
            with self._lock:
                if self._is_closed:
                    raise ServerDrainingError("The server is shutting down; nothing more will happen here.")
                if len(self._listeners) >= self._max_listeners:
                    raise TooManyListenersError(
                        f"{self._max_listeners} listen to the events already, and no more may: each costs the server "
                        "a thread."
                    )
                self._listeners = (*self._listeners, listener)
                is_first = not self.is_heard
                self.is_heard = True
            if is_first and self.sources is not None:
                self.sources.begin()
        return listener

    def leave(self, listener: Listener) -> None:
        """A second call does nothing."""
        listener.close()
        with self._switch:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)
                is_last = self.is_heard and not self._listeners
                self.is_heard = bool(self._listeners)
            if is_last and self.sources is not None:
                self.sources.end()

    def close(self) -> None:
        """Send everybody home, and let nobody in."""
        with self._lock:
            self._is_closed = True
            listeners = self._listeners
        for listener in listeners:
            self.leave(listener)
