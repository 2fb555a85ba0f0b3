"""The pool's invariants under any sequence of operations, found by hypothesis' rule-based state machine."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from aie_tensor import Allocation, DoubleFreeError, MemoryPool, OutOfMemoryError, UseAfterFreeError

BUDGET = 1 << 18


class PoolMachine(RuleBasedStateMachine):
    """A model of the pool: which handles are held, how often, and which byte each was filled with."""

    held = Bundle("held")
    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.pool = MemoryPool(min_block=256, max_block=1 << 14, classes_per_doubling=2, budget_bytes=BUDGET)
        self.references: dict[Allocation, int] = {}
        self.fill: dict[Allocation, int] = {}
        self.pinned: dict[int, tuple[np.ndarray, int]] = {}
        self.released: list[Allocation] = []
        self.next_fill = 0

    @rule(target=held, nbytes=st.integers(0, 1 << 15), exact=st.booleans())
    def allocate(self, nbytes: int, exact: bool) -> Allocation | None:
        try:
            block = self.pool.allocate_exact(nbytes) if exact else self.pool.allocate(nbytes)
        except OutOfMemoryError:
            assert self.pool.stats().cached_bytes == 0  # the ladder was climbed
            return None
        assert block.address % 64 == 0
        self.next_fill = (self.next_fill + 1) % 256
        block.array(np.uint8, nbytes)[...] = self.next_fill
        self.references[block], self.fill[block] = 1, self.next_fill
        return block

    @rule(block=held)
    def retain(self, block: Allocation | None) -> None:
        if block in self.references:
            block.retain()
            self.references[block] += 1

    @rule(block=held)
    def release(self, block: Allocation | None) -> None:
        if block not in self.references:
            return
        block.release()
        self.references[block] -= 1
        if self.references[block] == 0:
            del self.references[block]
            self.released.append(block)

    @rule(target=views, block=held)
    def view(self, block: Allocation | None) -> int:
        if block in self.references:
            self.pinned[len(self.pinned)] = (block.array(np.uint8, block.nbytes)[: block.nbytes // 2], self.fill[block])
        return len(self.pinned) - 1

    @rule(key=consumes(views))
    def end_view(self, key: int) -> None:
        if key in self.pinned:
            self.pinned[key] = (np.empty(0, np.uint8), 0)

    @rule()
    def misuse(self) -> None:
        for block in self.released[-2:]:
            with pytest.raises(DoubleFreeError):
                block.release()
            with pytest.raises(UseAfterFreeError):
                block.retain()

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        assert self.pool.stats().cached_bytes == 0

    @invariant()
    def the_books_balance(self) -> None:
        stats = self.pool.stats()
        assert stats.live_bytes + stats.cached_bytes == stats.reserved_bytes <= BUDGET
        assert stats.cached_bytes == sum(block.nbytes for blocks in self.pool._free for block in blocks)
        assert stats.live_bytes >= stats.requested_bytes >= sum(block.nbytes for block in self.references)
        assert stats.peak_live_bytes >= stats.live_bytes
        assert stats.peak_reserved_bytes >= stats.reserved_bytes
        assert stats.num_live >= len(self.references)
        assert all(block.num_references == count > 0 for block, count in self.references.items())

    @invariant()
    def no_two_blocks_overlap(self) -> None:
        spans = sorted((block.address, block.address + block.block_bytes) for block in self.references)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))

    @invariant()
    def nobody_wrote_into_what_is_held(self) -> None:
        for block in self.references:
            assert (block.array(np.uint8, block.nbytes) == self.fill[block]).all()
        for array, fill in self.pinned.values():
            assert (array == fill).all()

    def teardown(self) -> None:
        for block, count in self.references.items():
            for _ in range(count):
                block.release()
        self.pinned.clear()
        self.pool.trim()
        stats = self.pool.stats()
        assert (stats.reserved_bytes, stats.live_bytes, stats.requested_bytes, stats.num_live) == (0, 0, 0, 0)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
