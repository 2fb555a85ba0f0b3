"""The memory pool: blocks in size classes, kept for reuse.

Why. A fresh megabyte from the system costs page faults on its first touch, and on a device an allocation stops the
queue. An inference server asks for the same few sizes thousands of times a second. So a block that is given back stays
in the free list of its class, and the next request of that class gets it.

Invariant, after every operation:  live + cached + pending = reserved, each block is in exactly one of the three, and no
two blocks share a byte.  Cost: O(log classes) to find the class, O(1) for the rest.

The rules:
  1. A request is rounded up to its class. An empty class borrows from the next one up, then from other streams whose
     events have passed, before memory is reserved; when there is none, a ladder is climbed (`ladder.py`).
  2. Requests beyond the largest class, and `allocate_exact` (weights, KV slabs: what lives as long as the engine), go
     past the classes: rounded to pages only, zeroed, returned to the upstream when freed.
  3. A block that was used on a stream goes to another stream only after its event (`freelists.py`, `pending.py`).

Threads: one re-entrant lock. Re-entrant, since a garbage collection may run somebody's `release` while this thread is
inside; between any two steps that can start one, the books are in order. Finalizers of arrays and handles only append
to a deque, and the next operation settles them. What is raised in the middle (a Ctrl-C, a device that fails) leaves
steps undone; the books are mended then (`mending.py`).
"""

import threading
from bisect import bisect_left
from collections import deque
from pathlib import Path
from typing import NoReturn, SupportsIndex

from aie_tensor.errors import ForeignFreeError, InvalidInputError, OutOfMemoryError
from aie_tensor.memory.adopted import Adopted, AdoptedKey
from aie_tensor.memory.allocation import Allocation
from aie_tensor.memory.classes import SizeClasses, checked_bytes, rounded_up
from aie_tensor.memory.filling import Fill, Filler
from aie_tensor.memory.history import RefHistory
from aie_tensor.memory.host import HostUpstream
from aie_tensor.memory.inspecting import pool_state
from aie_tensor.memory.ladder import climb
from aie_tensor.memory.ledger import Ledger
from aie_tensor.memory.mending import mend, mends, renew_in_forks
from aie_tensor.memory.owner import Owner, checked_owner
from aie_tensor.memory.segments import Block
from aie_tensor.memory.slab import BlockSlab
from aie_tensor.memory.state import PoolState, PoolStats
from aie_tensor.memory.store import BlockStore
from aie_tensor.memory.streams import Stream
from aie_tensor.memory.trimming import TrimPolicy, largest_idle, long_idle
from aie_tensor.memory.upstream import Upstream
from aie_tensor.memory.watching import announce
from aie_tensor.stacks import resolve

__all__ = ["MemoryPool"]


class MemoryPool:
    """See the module's text. Sizes in bytes; `classes_per_doubling` 1, 2, 4 or 8; no `budget_bytes` means no limit."""

    def __init__(
        self,
        *,
        name: str = "host",
        upstream: Upstream | None = None,
        min_block: int = 1024,
        max_block: int = 1 << 30,
        classes_per_doubling: int = 1,
        segment_bytes: int = 1 << 20,
        budget_bytes: int | None = None,
        ledger: Ledger | None = None,
        fill: Fill = "none",
        trim: TrimPolicy = TrimPolicy(),  # noqa: B008 (frozen)
        oom_report: Path | None = None,
    ) -> None:
        self.name = name
        self.upstream: Upstream = upstream if upstream is not None else HostUpstream()
        self.classes = SizeClasses(min_block, max_block, classes_per_doubling)
        self.budget_bytes = None if budget_bytes is None else checked_bytes(budget_bytes, "budget_bytes")
        self.ledger = ledger or Ledger(enabled=False)
        self.policy = trim
        self.oom_report = (
            None if oom_report is None else Path(oom_report)
        )  # the file that an out-of-memory report is written to
        filler = Filler(fill, self.upstream)
        cut_bytes = checked_bytes(segment_bytes, "segment_bytes")
        self.store = BlockStore(self.upstream, self.classes, cut_bytes, filler, self.ledger)
        self.lock = threading.RLock()
        # What finalizers report; appending is all that they do.
        self.dropped: deque[Allocation] = deque()
        self.ended_views: deque[Block] = deque()
        self.dropped_adoptions: deque[tuple[int, AdoptedKey]] = deque()
        self.slabs: dict[BlockSlab, None] = {}
        self.adopted_bytes = 0
        self.num_reuses = [0] * len(self.classes.sizes)  # requests by class: served from a free list …
        self.num_reserved = [0] * len(self.classes.sizes)  # … and with fresh memory
        self._largest = self.classes.sizes[-1]
        self._live_bytes = self._peak_live = self._requested = 0
        self._num_live = self._num_allocations = self._num_dropped = 0
        self._plain = not filler.active and not trim.active  # a release has nothing to do but to append
        self.torn = False  # something was raised in the middle, and the books are not mended yet
        self._next_sweep = trim.max_idle_allocations
        renew_in_forks(self)
        announce(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidInputError(
            "a pool cannot be copied or pickled: state() describes it, and each process makes its own"
        )

    @property
    def device(self) -> str:
        """Where its memory is: "cpu", "cuda:0"."""
        return self.upstream.device

    @property
    def cached_bytes(self) -> int:
        """Bytes in free lists."""
        return self.store.reserved_bytes - self._live_bytes - self.store.pending.nbytes

    def allocate(self, nbytes: int, *, owner: str | Owner = "", stream: Stream | None = None) -> Allocation:
        """A block of at least `nbytes` bytes at a 64-byte boundary, content undefined unless the pool fills. Zero bytes
        get the smallest block. `stream` is where it will be used first. OutOfMemoryError; InvalidInputError for what is
        no size; WriteAfterFreeError in a pool that poisons."""
        if type(nbytes) is not int or nbytes < 0:
            nbytes = checked_bytes(nbytes)
        if type(owner) is not str:
            owner = checked_owner(owner)
        try:
            if nbytes > self._largest:
                return self.allocate_exact(nbytes, owner=owner, stream=stream)
            size_class = bisect_left(self.classes.sizes, nbytes)
            with self.lock:
                if self.dropped or self.ended_views or self.store.pending:
                    self.settle_all()
                block = self.store.take(size_class, stream)
                if block is not None:
                    self.num_reuses[size_class] += 1
                    return self.hand_out(block, nbytes, owner, stream)
            if self.torn:
                mend(self)
            return climb(self, self.classes.sizes[size_class], size_class, nbytes, owner, stream)
        except OutOfMemoryError:
            raise  # the books are in order
        except BaseException:
            self.torn = True
            mend(self)
            raise

    def allocate_exact(self, nbytes: int, *, owner: str | Owner = "", stream: Stream | None = None) -> Allocation:
        """A block of its own, rounded to the upstream's granularity (a page), zeroed, on the host touched only when
        written; returned to the upstream when freed. Errors as `allocate`."""
        nbytes = checked_bytes(nbytes)
        owner = checked_owner(owner)
        try:
            return climb(self, rounded_up(nbytes, self.upstream.granularity), None, nbytes, owner, stream)
        except OutOfMemoryError:
            raise
        except BaseException:
            self.torn = True
            mend(self)
            raise

    def adopt(self, nbytes: int, *, owner: str | Owner) -> Adopted:
        """List memory of others, such as a mapped file: in the ledger and in `mapped_bytes`, never in `reserved_bytes`.
        InvalidInputError for what is no size."""
        return Adopted(self, checked_bytes(nbytes), owner)

    def slab(self, num_blocks: int, block_bytes: int, *, owner: str | Owner) -> BlockSlab:
        """A book of who has which of `num_blocks` equal blocks that the caller hands out. It allocates no memory.
        InvalidInputError for what are no sizes."""
        return BlockSlab(
            self, checked_bytes(num_blocks, "num_blocks"), checked_bytes(block_bytes, "block_bytes"), owner
        )

    def free(self, allocation: Allocation) -> None:
        """As `allocation.release()`. ForeignFreeError when another pool made it, InvalidInputError for what is none."""
        if not isinstance(allocation, Allocation):
            raise InvalidInputError(f"a pool takes back allocations, not {allocation!r}", param="allocation")
        if allocation.pool is not self:
            raise ForeignFreeError(
                f"foreign free: {allocation.nbytes} bytes (owner '{allocation.owner}') are another pool's",
                allocated_at=allocation.allocated_at,
                freed_at=resolve(self.ledger.capture() or ()),
            )
        allocation.release()

    def trim(self, keep_bytes: int = 0) -> int:
        """Return idle segments to the upstream, the largest first, until at most `keep_bytes` are cached; the bytes
        returned. A segment with a live block, or whose stream may still use one, stays. InvalidInputError."""
        keep_bytes = checked_bytes(keep_bytes, "keep_bytes")
        if self.torn:
            mend(self)
        try:
            with self.lock:
                self.settle_all()
                return self.store.give_back(largest_idle(self.store.segments, self.cached_bytes - keep_bytes))
        except BaseException:
            self.torn = True
            mend(self)
            raise

    def synchronize(self) -> None:
        """Wait until no stream uses a block that was given back. The lock is not held meanwhile."""
        with self.lock:
            self.settle_all()
            events = self.store.events()
        for event in events:
            event.wait()
        with self.lock:
            self.settle_all()

    def stats(self) -> PoolStats:
        """A consistent set of counters."""
        if self.torn:
            mend(self)
        with self.lock:
            self.settle_all()
            return PoolStats(
                reserved_bytes=self.store.reserved_bytes,
                live_bytes=self._live_bytes,
                requested_bytes=self._requested,
                cached_bytes=self.cached_bytes,
                pending_bytes=self.store.pending.nbytes,
                mapped_bytes=self.adopted_bytes,
                peak_live_bytes=self._peak_live,
                peak_reserved_bytes=self.store.peak_reserved_bytes,
                num_live=self._num_live,
                num_allocations=self._num_allocations,
                num_reuses=sum(self.num_reuses),
                num_dropped=self._num_dropped,
            )

    def state(self) -> PoolState:
        """Everything about the pool, as data."""
        return pool_state(self)

    def settle(self, block: Block) -> None:
        """Take `block` back if neither a reference nor a view is left. For `Allocation`; the caller holds the lock."""
        if block.references or block.views:
            return
        simple = self._plain and block.stream is None and not block.used_on and block.size_class is not None
        events = () if simple else self.store.events_behind(block)  # where a device fails here, the block stays live
        self._live_bytes -= block.nbytes
        self._requested -= block.requested_bytes
        self._num_live -= 1
        if block.recorded:
            self.ledger.forget(block)
            block.recorded = False
        if simple:
            assert block.size_class is not None
            block.use = "free"
            self.store.free.host[block.size_class][block] = None  # `store.retire` for the common case
        else:
            block.idle_since = self._num_allocations
            self.store.retire(block, events)
            self._trim_by_policy()

    def settle_all(self) -> None:
        """Count what finalizers reported and which events passed since then. The caller holds the lock."""
        try:
            self._settle_all()
        except BaseException:
            self.torn = True
            mend(self)
            raise

    def _settle_all(self) -> None:
        # Nothing can interrupt, and no collection can start, between a report's effect and its end in the deque.
        while self.dropped:
            handle = self.dropped[0]
            dropped = handle.drop()
            if self.dropped and self.dropped[0] is handle:  # a collection that started in `drop` may have been here
                self.dropped.popleft()
            if dropped:
                self._num_dropped += 1
                self.settle(handle.block)
        while self.ended_views:
            block = self.ended_views[0]
            block.views -= 1
            self.ended_views.popleft()
            self.settle(block)
        while self.dropped_adoptions:
            first = self.dropped_adoptions[0]
            self.ledger.forget(first[1])
            if self.dropped_adoptions and self.dropped_adoptions[0] is first:
                self.adopted_bytes -= first[0]
                self.dropped_adoptions.popleft()
        if self.store.pending:
            self.store.settle_pending()
            self._trim_by_policy()

    def recount(self, num_live: int, live_bytes: int, requested_bytes: int) -> None:
        """The sums, found anew. For `mend`, which holds the lock."""
        self._num_live, self._live_bytes, self._requested = num_live, live_bytes, requested_bytes

    def hand_out(self, block: Block, nbytes: int, owner: str | Owner, stream: Stream | None) -> Allocation:
        """Make `block`, which is in no free list any more, the caller's. The lock is held."""
        block.use = "live"
        block.requested_bytes = nbytes
        block.owner = owner
        block.stream = stream
        block.event = None
        self._num_live += 1
        self._requested += nbytes
        self._num_allocations += 1
        self._live_bytes += block.nbytes
        if self._live_bytes > self._peak_live:  # noqa: PLR1730 (this line runs at every allocation)
            self._peak_live = self._live_bytes
        stack = None
        ledger = self.ledger
        if ledger.enabled:
            block.recorded = True
            stack = ledger.record(
                block, nbytes, owner, block_bytes=block.nbytes, stream=block.stream_name, address=block.address
            )
            block.history = RefHistory() if stack is not None else None  # as the sample goes
            block.freed_at = None
        else:
            block.history = None
        block.allocated_at = stack
        if self._next_sweep is not None and self._num_allocations >= self._next_sweep:
            self._sweep()
        return Allocation(self, block, stack)

    def _trim_by_policy(self) -> None:
        """After blocks became free. The caller holds the lock."""
        limit = self.policy.max_cached_bytes
        if limit is not None and self.cached_bytes > limit:
            self.store.give_back(largest_idle(self.store.segments, self.cached_bytes - limit))

    def _sweep(self) -> None:
        """Return what nobody took for long. The caller holds the lock."""
        most = self.policy.max_idle_allocations
        assert most is not None, "only such a policy sweeps"
        self.store.give_back(long_idle(self.store.segments, self._num_allocations - most))
        self._next_sweep = self._num_allocations + max(1, most // 8)  # now and then: it looks at every segment


for _operation in (MemoryPool.allocate, MemoryPool.allocate_exact, MemoryPool.trim, MemoryPool.settle_all):
    mends(_operation.__code__)
