"""A look, with what has happened since the last one, where the server tells."""

from collections.abc import Callable
from dataclasses import replace

from aie.bench.client import Endpoint
from aie.top.feed import EventFeed
from aie.top.look import Look, look_at

__all__ = ["look_and_listen"]


def look_and_listen(endpoint: Endpoint, feed: EventFeed, look: Callable[[Endpoint], Look] = look_at) -> Look:
    """Raises what a look raises. Only servers of ours are asked for events, from the first look on."""
    found = look(endpoint)
    if found.figures.server != "aie":
        return found
    feed.start()
    events = feed.take()
    return replace(found, events=events) if events or feed.is_heard else found
