"""The memory pool: blocks in size classes, kept for reuse.

Why. A fresh megabyte from the system costs page faults on its first touch, and on a device an allocation stops the
queue. An inference server asks for the same few sizes thousands of times a second. So a block that is given back stays
in the free list of its class, and the next request of that class gets it: a list pop.

Invariant, after every operation:  live + cached = reserved, each block is in exactly one of the two, and no two blocks
share a byte.  Cost: O(log classes) to find the class, O(1) for the rest.

The rules:
  1. A request is rounded up to its class. An empty class borrows from the next one up, before the system is asked.
  2. Requests beyond the largest class, and `allocate_exact` (KV slabs, which live as long as the engine), bypass the
     classes: rounded to pages only, zeroed, returned to the system when freed.
  3. When `budget_bytes` or the system refuses: return cached blocks, then collect garbage, then try again, then raise
     `OutOfMemoryError` with the figures. The last step refuses one request; it never ends the process.

Threads: one re-entrant lock. Re-entrant, since a garbage collection may run somebody's `release` while this thread is
inside; sections are straight-line code that tolerates it. Finalizers of arrays and handles only append to a deque, and
the next operation settles them.
"""

import gc
import threading
from collections import Counter, deque
from dataclasses import dataclass

from aie_tensor.errors import ForeignFreeError, InvalidInputError, OutOfMemoryError
from aie_tensor.memory.allocation import Allocation, Block
from aie_tensor.memory.ledger import Ledger
from aie_tensor.memory.system import SizeClasses, page_rounded, reserve, reserve_zeroed
from aie_tensor.stacks import resolve

__all__ = ["MemoryPool", "PoolStats"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counters of one pool at one moment. reserved = live + cached; live − requested is lost to rounding."""

    reserved_bytes: int  # taken from the system and not yet returned
    live_bytes: int  # blocks in use
    requested_bytes: int  # what their holders asked for
    cached_bytes: int  # blocks in free lists
    peak_live_bytes: int
    peak_reserved_bytes: int
    num_live: int
    num_allocations: int  # since the start
    num_reuses: int  # of those, served from a free list
    num_dropped: int  # handles that Python collected before anyone released them


class MemoryPool:
    """See the module's text. Sizes in bytes; `classes_per_doubling` 1, 2, 4 or 8; no `budget_bytes` means no limit."""

    def __init__(
        self,
        *,
        min_block: int = 1024,
        max_block: int = 1 << 30,
        classes_per_doubling: int = 1,
        budget_bytes: int | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._classes = SizeClasses(min_block, max_block, classes_per_doubling)
        self._free: list[list[Block]] = [[] for _ in self._classes.sizes]
        self._live: set[Block] = set()
        self.budget_bytes = budget_bytes
        self.ledger = ledger or Ledger(enabled=False)
        # The four below are for `Allocation` and its views.
        self.lock = threading.RLock()
        self.dropped: deque[Block] = deque()
        self.ended_views: deque[Block] = deque()
        self._reserved = self._live_bytes = self._requested = 0
        self._peak_live = self._peak_reserved = 0
        self._num_allocations = self._num_reuses = self._num_dropped = 0

    def allocate(self, nbytes: int, *, owner: str = "") -> Allocation:
        """A block of at least `nbytes` bytes at a 64-byte boundary, content undefined. OutOfMemoryError."""
        size_class = self._classes.index(_checked(nbytes))
        if size_class is None:
            return self.allocate_exact(nbytes, owner=owner)
        with self.lock:
            self._settle_finalized()
            for candidate in (size_class, size_class + 1):
                if candidate < len(self._free) and self._free[candidate]:
                    self._num_reuses += 1
                    return self._hand_out(self._free[candidate].pop(), nbytes, owner)
        return self._grow(self._classes.sizes[size_class], size_class, nbytes, owner)

    def allocate_exact(self, nbytes: int, *, owner: str = "") -> Allocation:
        """A block of its own, rounded to pages, zeroed, its pages touched only when written. OutOfMemoryError."""
        return self._grow(page_rounded(_checked(nbytes)), None, nbytes, owner)

    def free(self, allocation: Allocation) -> None:
        """As `allocation.release()`, and ForeignFreeError when another pool made it."""
        if allocation._pool is not self:
            raise ForeignFreeError(
                f"foreign free: {allocation.nbytes} bytes (owner {allocation.owner or 'unnamed'!r}) are another pool's",
                allocated_at=allocation.allocated_at,
                freed_at=resolve(self.ledger.capture() or ()),
            )
        allocation.release()

    def trim(self) -> int:
        """Return every cached block to the system; the bytes returned."""
        with self.lock:
            self._settle_finalized()
            returned = self._reserved - self._live_bytes
            for cached in self._free:
                cached.clear()
            self._reserved -= returned
        return returned

    def stats(self) -> PoolStats:
        """A consistent set of counters."""
        with self.lock:
            self._settle_finalized()
            return PoolStats(
                reserved_bytes=self._reserved,
                live_bytes=self._live_bytes,
                requested_bytes=self._requested,
                cached_bytes=self._reserved - self._live_bytes,
                peak_live_bytes=self._peak_live,
                peak_reserved_bytes=self._peak_reserved,
                num_live=len(self._live),
                num_allocations=self._num_allocations,
                num_reuses=self._num_reuses,
                num_dropped=self._num_dropped,
            )

    def settle(self, block: Block) -> None:
        """Take `block` back if neither a reference nor a view is left. For `Allocation`; the caller holds the lock."""
        if block.references or block.views:
            return
        self._live.remove(block)
        self._live_bytes -= block.nbytes
        self._requested -= block.requested_bytes
        self.ledger.forget(block)
        if block.size_class is None:
            self._reserved -= block.nbytes
        else:
            self._free[block.size_class].append(block)

    def _settle_finalized(self) -> None:
        """Count what finalizers reported since the last operation. The caller holds the lock."""
        while self.dropped:
            block = self.dropped.popleft()
            block.references = 0
            self._num_dropped += 1
            self.settle(block)
        while self.ended_views:
            block = self.ended_views.popleft()
            block.views -= 1
            self.settle(block)

    def _grow(self, size: int, size_class: int | None, nbytes: int, owner: str) -> Allocation:
        """A new block of `size` bytes from the system, climbing the ladder of rule 3. The ladder is climbed without the
        lock, since collecting garbage runs foreign code that may wait for another thread."""
        for relieve in (None, self.trim, self._collect_garbage):
            if relieve is not None:
                relieve()
            with self.lock:
                if self.budget_bytes is not None and self._reserved + size > self.budget_bytes:
                    continue
                try:
                    memory = reserve(size) if size_class is not None else reserve_zeroed(size)
                except (MemoryError, OSError, OverflowError):
                    continue
                self._reserved += size
                self._peak_reserved = max(self._peak_reserved, self._reserved)
                return self._hand_out(Block(memory, size_class), nbytes, owner)
        raise OutOfMemoryError(self._exhausted(size, nbytes, owner))

    def _collect_garbage(self) -> None:
        gc.collect()
        self.trim()

    def _hand_out(self, block: Block, nbytes: int, owner: str) -> Allocation:
        """The caller holds the lock."""
        block.references = 1
        block.requested_bytes = nbytes
        block.owner = owner
        self._live.add(block)
        self._live_bytes += block.nbytes
        self._requested += nbytes
        self._num_allocations += 1
        self._peak_live = max(self._peak_live, self._live_bytes)
        return Allocation(self, block, self.ledger.record(block, nbytes, owner))

    def _exhausted(self, size: int, nbytes: int, owner: str) -> str:
        """The figures, for the person who has to decide what to change."""
        now = self.stats()
        holders: Counter[str] = Counter()
        with self.lock:
            for block in self._live:
                holders[block.owner or "unnamed"] += block.nbytes
        limit = "no budget: the system refused" if self.budget_bytes is None else f"budget {self.budget_bytes:,}"
        largest = ", ".join(f"{name} {held:,}" for name, held in holders.most_common(5)) or "nobody"
        return (
            f"out of memory: {nbytes:,} bytes for {owner or 'unnamed'!r} need a block of {size:,} ({limit}); "
            f"reserved {now.reserved_bytes:,} = live {now.live_bytes:,} + cached {now.cached_bytes:,} after trimming "
            f"and collecting; {now.live_bytes - now.requested_bytes:,} of the live bytes are rounding. "
            f"Held by: {largest}"
        )


def _checked(nbytes: int) -> int:
    if nbytes < 0:
        raise InvalidInputError(f"cannot allocate {nbytes} bytes", param="nbytes")
    return nbytes
