"""GET /debug/events: what happens in the server, as it happens, as server-sent events.

    event: batch
    data: {"n": 12, "at": 1790000000.25, "event": "batch", "model": "mini", "size": 8, "cut": "full", …}

    started     a request to a model has been found valid         request_id, model, path
    ended       it was answered, and why it ended                 … status, why, duration_ms, its counts
    rejected    a request was turned away                         … status, why
    batch       a predictor has computed one                      model, size, cut, worker, waited_ms, compute_ms
    steps       an engine has, since the last look at it          model, steps, mean_batch, max_batch, tokens, queue
    preempted   a request lost its KV blocks                      model, request_id, by, lost_tokens
    worker      a process was lost, or a new one is there         model, worker, state
    reload      a version serves, failed, or was unloaded         model, state, version, why
    trouble     an engine could not be asked                      what
    lost        this listener was too slow                        count

It needs the API key where there is one, and then tells of the requests of that key alone. Without events a comment
comes every few seconds, so that both ends notice when the other one has gone.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from aie_server.auth import ApiKeys
from aie_server.events import EventHub, Listener
from aie_server.http.messages import ClientGoneError, Request, StreamingResponse

__all__ = ["EventsEndpoint"]

_LOOK_S: Final = 0.5  # whether the client is still there
_COMMENT_EVERY: Final = 20  # looks without an event

_encode = msgspec.json.Encoder().encode


class EventsEndpoint:
    """The handler. Raises `TooManyListenersError` (503)."""

    def __init__(self, hub: EventHub, keys: ApiKeys) -> None:
        self._hub = hub
        self._keys = keys

    def __call__(self, request: Request) -> StreamingResponse:
        listener = self._hub.listen(request.client_key if self._keys.are_needed else None)
        return StreamingResponse(_pieces(listener, request), lambda: self._hub.leave(listener))


def _pieces(listener: Listener, request: Request) -> Iterator[bytes]:
    yield b": listening\n\n"  # with it the head leaves
    num_quiet = 0
    while not listener.is_closed:
        events = listener.take(_LOOK_S)
        if events:
            num_quiet = 0
            yield b"".join(b"event: %b\ndata: %b\n\n" % (str(one["event"]).encode(), _encode(one)) for one in events)
            continue
        if request.client_gone():
            raise ClientGoneError
        num_quiet += 1
        if num_quiet % _COMMENT_EVERY == 0:
            yield b":\n\n"
