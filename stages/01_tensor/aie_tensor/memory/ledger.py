"""The ledger: who holds what, since when, and which line asked for it.

A leak is memory that is still held when its reason has gone; nothing else can be said from an address. So each record
carries an owner ("kv", of request r-17), an age and the call stack, and the report groups what is left by stack and by
what it is for: one leaking line shows as one group whose count grows, whatever requests met it.

Cost. Off (the default in production) every call is one branch. On, it is a walk over at most 16 frames and one entry
of a dictionary; text is made only in reports. Sampling, at one record in `sample_every`, lies between. Each call is
drawn by chance: counting to 64 would always hit the same layer of a model whose step makes 64 allocations, and never
the others. The generator is seeded, so that the same program makes the same choices.

Events. While it is on, the ledger tells its `sinks` (the ring that survives a crash, the log for a replay) what
happens. With sampling they hear of the recorded allocations only.

Threads. No lock is taken on the way of an allocation: the ledger is called with the pool's lock held, and may be called
by a finalizer in the middle of its own work. Each method makes one atomic change to a dictionary, and reports read a
copy.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace

from aie_tensor.errors import InvalidInputError
from aie_tensor.memory.events import EventKind, MemoryEvent
from aie_tensor.memory.history import RefEvent, RefHistory
from aie_tensor.memory.owner import Owner
from aie_tensor.stacks import Frame, RawStack, StackTable, resolve

__all__ = ["LeakGroup", "Ledger", "LedgerEntry", "Mark"]

Sink = Callable[[MemoryEvent], None]
MAX_REQUESTS_NAMED = 3  # ids of requests per group of a report: enough to find one in a log


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One thing still held."""

    owner: Owner  # completed with the ledger's context
    nbytes: int  # as asked for
    block_bytes: int  # as taken
    stream: str  # "" for the host's own order
    age_s: float
    stack: tuple[Frame, ...]  # innermost first, without the memory package's own frames
    num_references: int | None = None  # where the key counts them
    history: tuple[RefEvent, ...] = ()  # the last changes of that count, oldest first


@dataclass(frozen=True, slots=True)
class LeakGroup:
    """Everything still held that one line asked for, for one purpose."""

    stack: tuple[Frame, ...]
    owner: Owner  # without a request id
    count: int
    nbytes: int  # as asked for
    block_bytes: int  # as taken
    oldest_s: float
    requests: tuple[str, ...]  # ids of up to three of the requests that hold it, longest first


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment to compare with: `report(baseline)` leaves out what was recorded before it."""

    sequence: int  # records made later have a higher number
    num_outstanding: int
    outstanding_bytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    sequence: int
    owner: str | Owner
    nbytes: int
    block_bytes: int
    stream: str
    address: int
    at_s: float
    stack: RawStack


class Ledger:
    """Records what is held under a key. `enabled` may be switched while running: what was recorded stays, and `forget`
    of a key that was never recorded does nothing.

    `context` names what all records have in common (model, worker, stage). A sink that raises is dropped and its error
    kept in `sink_error`: an allocation never fails because somebody watches it. InvalidInputError for counts below 1.
    """

    def __init__(
        self,
        enabled: bool,
        clock: Callable[[], float] = time.monotonic,
        *,
        sample_every: int = 1,
        context: Owner = Owner(),  # noqa: B008 (frozen)
        max_frames: int = 16,
    ) -> None:
        for name, count in (("sample_every", sample_every), ("max_frames", max_frames)):
            if type(count) is not int or count < 1:
                raise InvalidInputError(f"{name} is a whole number, not {count!r}: give 1 or more", param=name)
        self.enabled = enabled
        self.sample_every = sample_every
        self.context = context
        self.sinks: list[Sink] = []
        self.sink_error: Exception | None = None
        self.num_requests = 0  # ended since the start
        self._clock = clock
        self._stacks = StackTable(max_frames)
        self._records: dict[Hashable, _Record | None] = {}  # None: left out of the sample
        self._sequence = itertools.count(1)
        self._draw = random.Random(0).random
        self._counting = threading.RLock()  # re-entrant, since a collection inside may end another request

    @property
    def num_lost(self) -> int:
        """Things held now that sampling left out."""
        return sum(record is None for record in self._records.copy().values())

    def record(
        self,
        key: Hashable,
        nbytes: int,
        owner: str | Owner,
        *,
        block_bytes: int | None = None,
        stream: str = "",
        address: int = 0,
    ) -> RawStack | None:
        """Note that `key` is held now; the same key again replaces the record. `block_bytes` is `nbytes` unless given.

        Returns the stack; None when off, or when the sample leaves this one out. Where the key has an attribute
        `references` (a count) or `history` (a `RefHistory`), reports read them from there.
        """
        if not self.enabled:
            return None
        if self.sample_every > 1 and self._draw() * self.sample_every >= 1:
            self._records[key] = None
            return None
        stack = self._stacks.capture()
        taken = nbytes if block_bytes is None else block_bytes
        at_s = self._clock()
        self._records[key] = _Record(next(self._sequence), owner, nbytes, taken, stream, address, at_s, stack)
        if self.sinks:
            self._tell(MemoryEvent(EventKind.ALLOCATE, at_s, address, nbytes, taken, stream, Owner.of(owner), stack))
        return stack

    def forget(self, key: Hashable) -> None:
        """Note that `key` is no longer held."""
        if not self._records:  # empty when the ledger was never on: still one branch
            return
        record = self._records.pop(key, None)
        if record is not None and self.sinks:
            self.emit(EventKind.FREE, record.address, record.nbytes, record.block_bytes, record.stream, record.owner)

    def emit(
        self,
        kind: EventKind,
        address: int,
        nbytes: int,
        block_bytes: int,
        stream: str,
        owner: str | Owner,
        stack: RawStack | None = None,
    ) -> None:
        """Tell the sinks of anything that is not an allocation. Nothing happens when off."""
        if self.enabled and self.sinks:
            self._tell(MemoryEvent(kind, self._clock(), address, nbytes, block_bytes, stream, Owner.of(owner), stack))

    def capture(self) -> RawStack | None:
        """The current call stack, or None when off."""
        return self._stacks.capture() if self.enabled else None

    def count_request(self, n: int = 1) -> None:
        """Note that `n` requests ended, however they ended. Counted also when off: growth is per request."""
        if type(n) is not int or n < 0:
            raise InvalidInputError(f"a number of requests is a whole number of 0 or more, not {n!r}", param="n")
        with self._counting:
            self.num_requests += n
        for _ in range(n if self.sinks else 0):
            self.emit(EventKind.REQUEST, 0, 0, 0, "", "")

    def mark(self) -> Mark:
        """The moment, for a later `report(baseline)`. Take it after warm-up: caches fill once and are no leaks."""
        sequence = next(self._sequence)
        held = self._held_since(0)
        return Mark(sequence, len(held), sum(record.nbytes for _, record in held))

    def outstanding(self) -> list[LedgerEntry]:
        """Everything held now, oldest first."""
        now = self._clock()
        texts = _Texts()
        return [
            LedgerEntry(
                owner=Owner.of(record.owner).within(self.context),
                nbytes=record.nbytes,
                block_bytes=record.block_bytes,
                stream=record.stream,
                age_s=now - record.at_s,
                stack=texts.of(record.stack),
                num_references=_references_of(key),
                history=_history_of(key),
            )
            for key, record in self._held_since(0)
        ]

    def report(self, baseline: Mark | None = None) -> list[LeakGroup]:
        """What is held and was recorded after `baseline`, grouped by stack and purpose, most bytes first."""
        now = self._clock()
        texts = _Texts()
        groups: dict[tuple[tuple[Frame, ...], Owner], list[_Record]] = {}
        for _, record in self._held_since(baseline.sequence if baseline else 0):
            purpose = replace(Owner.of(record.owner).within(self.context), request_id="")
            groups.setdefault((texts.of(record.stack), purpose), []).append(record)
        leaks = [
            LeakGroup(
                stack=stack,
                owner=purpose,
                count=len(held),
                nbytes=sum(record.nbytes for record in held),
                block_bytes=sum(record.block_bytes for record in held),
                oldest_s=now - held[0].at_s,
                requests=_some_requests(held),
            )
            for (stack, purpose), held in groups.items()
        ]
        return sorted(leaks, key=lambda leak: -leak.nbytes)

    def _held_since(self, sequence: int) -> list[tuple[Hashable, _Record]]:
        """Records newer than `sequence` with their keys, oldest first."""
        held = [(key, r) for key, r in self._records.copy().items() if r is not None and r.sequence > sequence]
        return sorted(held, key=lambda pair: pair[1].sequence)

    def _tell(self, event: MemoryEvent) -> None:
        for sink in self.sinks.copy():
            try:
                sink(event)
            except Exception as error:  # a full disk, a closed file: the allocation goes on
                # Without tracebacks: they would hold every local of whoever was allocating, for good.
                error.__traceback__ = error.__context__ = error.__cause__ = None
                self.sink_error = error
                with suppress(ValueError):  # another thread met the same error
                    self.sinks.remove(sink)


class _Texts:
    """The frames of stacks as text, each looked up once per report."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Frame, ...]] = {}

    def of(self, stack: RawStack) -> tuple[Frame, ...]:
        """By identity: stacks are interned, and the records of the report keep them alive."""
        known = self._known.get(id(stack))
        if known is None:
            known = self._known[id(stack)] = resolve(stack)
        return known


def _references_of(key: Hashable) -> int | None:
    references = getattr(key, "references", None)
    return references if isinstance(references, int) else None


def _history_of(key: Hashable) -> tuple[RefEvent, ...]:
    history = getattr(key, "history", None)
    return history.events() if isinstance(history, RefHistory) else ()


def _some_requests(records: list[_Record]) -> tuple[str, ...]:
    """Ids of the first few requests among `records`, each once."""
    ids = (Owner.of(record.owner).request_id for record in records)
    return tuple(itertools.islice(dict.fromkeys(text for text in ids if text), MAX_REQUESTS_NAMED))
