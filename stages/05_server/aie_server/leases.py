"""Who still uses which version of a model.

A request takes a lease when it begins and gives it back when it has let go of engine and tokenizer, however it ended.
A version that was replaced stays as it is until the last lease on it is back; only then is it closed, by whoever
replaced it.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aie_server.served import ServedModel

__all__ = ["Holding", "Lease"]


class Holding:
    """One version in a table and the count of leases on it. Counts under the table's lock."""

    def __init__(self, model: "ServedModel", lock: threading.Lock) -> None:
        self.model = model
        self._lock = lock
        self._num_leases = 0
        self._on_idle: Callable[[], None] | None = None  # set when retired

    @property
    def num_leases(self) -> int:
        return self._num_leases

    def lease(self) -> "Lease":
        """One more user. For holders of the lock."""
        self._num_leases += 1
        return Lease(self)

    def retire(self, on_idle: Callable[[], None]) -> None:
        """No new users come. `on_idle` is called once when there are none left: now, or by the last one's thread, so it
        has to be quick."""
        with self._lock:
            assert self._on_idle is None, self.model.name
            self._on_idle = on_idle
            is_idle = self._num_leases == 0
        if is_idle:
            on_idle()

    def share(self) -> "Lease":
        """One more user, for one that has a lease already."""
        with self._lock:
            assert self._num_leases > 0, self.model.name
            return self.lease()

    def give_back(self) -> None:
        with self._lock:
            self._num_leases -= 1
            on_idle = self._on_idle if self._num_leases == 0 else None
        if on_idle is not None:
            on_idle()


class Lease:
    """The right to use `model` until `close`, which may be called again. Use as a context manager, or close it."""

    __slots__ = ("_holding", "_is_open", "model")

    def __init__(self, holding: Holding) -> None:
        self.model = holding.model
        self._holding = holding
        self._is_open = True

    def share(self) -> "Lease":
        """A lease of its own on the same version, for what outlives this one."""
        assert self._is_open
        return self._holding.share()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._holding.give_back()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
