"""The ledger: who holds what, since when, and which line asked for it.

A leak is memory that is still held when its reason has gone; nothing else can be said from an address. So each record
carries an owner in words ("kv of request r-17"), an age and the call stack, and the report groups what is left by stack
and owner: one leaking line shows as one group whose count grows.

Off (the default in production) every call costs one branch. On, it costs a walk over at most 16 frames and one
dictionary entry; text is made only in reports.
"""

import itertools
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from aie_tensor.stacks import Frame, RawStack, StackTable, resolve

__all__ = ["LeakGroup", "Ledger", "LedgerEntry", "Snapshot"]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One thing still held."""

    owner: str
    nbytes: int
    age_s: float
    stack: tuple[Frame, ...]  # innermost first, without the memory package's own frames


@dataclass(frozen=True, slots=True)
class LeakGroup:
    """Everything still held that one line asked for on behalf of one owner."""

    stack: tuple[Frame, ...]
    owner: str
    count: int
    nbytes: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment to compare with: `report(baseline)` leaves out what was recorded before it."""

    sequence: int  # records made later have a higher number
    num_outstanding: int
    outstanding_bytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    sequence: int
    owner: str
    nbytes: int
    at_s: float
    stack: RawStack


class Ledger:
    """Records what is held under a key. `enabled` may be switched while running: what was recorded stays, and `forget`
    of a key that was never recorded does nothing.

    Safe for threads without a lock, since it is called with other locks held and from finalizers: each method makes
    one atomic change to a dictionary, and reports read a copy.
    """

    def __init__(self, enabled: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.enabled = enabled
        self._clock = clock
        self._stacks = StackTable()
        self._records: dict[Hashable, _Record] = {}
        self._sequence = itertools.count(1)

    def record(self, key: Hashable, nbytes: int, owner: str) -> RawStack | None:
        """Note that `key` is held now; the same key again replaces the record. Returns the stack, None when off."""
        if not self.enabled:
            return None
        stack = self._stacks.capture()
        self._records[key] = _Record(next(self._sequence), owner, nbytes, self._clock(), stack)
        return stack

    def forget(self, key: Hashable) -> None:
        """Note that `key` is no longer held."""
        if self._records:  # empty when the ledger was never on: still one branch
            self._records.pop(key, None)

    def capture(self) -> RawStack | None:
        """The current call stack, or None when off."""
        return self._stacks.capture() if self.enabled else None

    def snapshot(self) -> Snapshot:
        """The moment, for a later `report(baseline=…)`. Take it after warm-up: caches fill once and are no leaks."""
        sequence = next(self._sequence)
        held = self._records.copy()
        return Snapshot(sequence, len(held), sum(record.nbytes for record in held.values()))

    def outstanding(self) -> list[LedgerEntry]:
        """Everything held now, oldest first."""
        now = self._clock()
        return [LedgerEntry(r.owner, r.nbytes, now - r.at_s, resolve(r.stack)) for r in self._held_since(0)]

    def report(self, baseline: Snapshot | None = None) -> list[LeakGroup]:
        """What is held and was recorded after `baseline`, grouped by stack and owner, most bytes first."""
        now = self._clock()
        groups: dict[tuple[RawStack, str], list[_Record]] = {}
        for record in self._held_since(baseline.sequence if baseline else 0):
            groups.setdefault((record.stack, record.owner), []).append(record)
        leaks = [
            LeakGroup(resolve(stack), owner, len(held), sum(r.nbytes for r in held), now - held[0].at_s)
            for (stack, owner), held in groups.items()
        ]
        return sorted(leaks, key=lambda leak: -leak.nbytes)

    def _held_since(self, sequence: int) -> list[_Record]:
        """Records newer than `sequence`, oldest first."""
        held = [record for record in self._records.copy().values() if record.sequence > sequence]
        return sorted(held, key=lambda record: record.sequence)
