"""Pools that other people's code makes, as seen by a tool that runs it.

`aie memdebug -- script.py` runs a program that knows nothing of it, and has to switch on the ledger of every pool made
there. That is what this module's one global is for; nothing else uses it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["announce", "watch_pools"]

Prepare = Callable[["MemoryPool"], None]

_watchers: list[tuple[Prepare, "weakref.WeakSet[MemoryPool]"]] = []


@contextmanager
def watch_pools(prepare: Prepare) -> Iterator["weakref.WeakSet[MemoryPool]"]:
    """Every pool constructed inside is passed to `prepare` at the end of its construction, in any thread. Gives the set
    of those that still exist. What `prepare` raises, the constructor raises."""
    watcher = (prepare, weakref.WeakSet["MemoryPool"]())
    _watchers.append(watcher)
    try:
        yield watcher[1]
    finally:
        _watchers.remove(watcher)


def announce(pool: "MemoryPool") -> None:
    """For the constructor of `MemoryPool`."""
    for prepare, pools in _watchers.copy():
        pools.add(pool)
        prepare(pool)
