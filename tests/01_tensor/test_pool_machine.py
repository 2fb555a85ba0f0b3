"""The pool's invariants under any sequence of operations, found by hypothesis' rule-based state machine.

Two simulated streams run behind the program. Whatever they still have to read is checked when they come to it, so a
block that was reused, filled or returned too early shows as a `HazardError`.
"""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from aie_tensor import (
    Allocation,
    DoubleFreeError,
    ForeignFreeError,
    HazardError,
    MemoryPool,
    OutOfMemoryError,
    SimulatedStream,
    TrimPolicy,
    UseAfterFreeError,
)

BUDGET = 1 << 18
SIZES = st.sampled_from([100, 1000, 5000]) | st.integers(0, 1 << 15)  # equal ones meet in one free list


class PoolMachine(RuleBasedStateMachine):
    """A model of the pool: which handles are held, how often, and which byte each was filled with."""

    kind = MemoryPool
    held = Bundle("held")
    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.streams = (None, SimulatedStream("compute"), SimulatedStream("copy"))
        self.references: dict[Allocation, int] = {}
        self.fill: dict[Allocation, int] = {}
        self.pinned: dict[int, tuple[np.ndarray, int]] = {}
        self.released: list[Allocation] = []
        self.next_fill = 0

    @initialize(fill=st.sampled_from(["none", "zero", "poison"]), max_cached=st.sampled_from([None, 0, 1 << 14]))
    def make_pool(self, fill: str, max_cached: int | None) -> None:
        self.pool = self.kind(
            min_block=256,
            max_block=1 << 14,
            classes_per_doubling=2,
            segment_bytes=1 << 12,
            budget_bytes=BUDGET,
            fill=fill,  # type: ignore[arg-type]
            trim=TrimPolicy(max_cached_bytes=max_cached),
        )

    @rule(target=held, nbytes=SIZES, exact=st.booleans(), stream=st.integers(0, 2))
    def allocate(self, nbytes: int, exact: bool, stream: int) -> Allocation | None:
        where = self.streams[stream]
        take = self.pool.allocate_exact if exact else self.pool.allocate
        try:
            block = take(nbytes, stream=where)
        except OutOfMemoryError:
            segments = self.pool.state().segments  # the ladder was climbed: what is still cached is pinned
            assert all(any(each.state == "live" for each in segment.blocks) for segment in segments)
            return None
        assert block.address % 64 == 0
        self.next_fill = self.next_fill % 255 + 1
        if where is None:
            block.array(np.uint8, nbytes)[...] = self.next_fill
        else:
            where.write(block, self.next_fill)
            where.check(block, self.next_fill)
        self.references[block], self.fill[block] = 1, self.next_fill
        return block

    @rule(block=held, stream=st.integers(0, 2))
    def read_on_stream(self, block: Allocation | None, stream: int) -> None:
        """Later than all work so far; on another stream than its own only after that one has caught up."""
        where = self.streams[stream]
        if block not in self.references or where is None:
            return
        if block.stream is not where:
            if block.stream is not None:
                block.stream.record().wait()
            block.used_on(where)
        where.check(block, self.fill[block])

    @rule(stream=st.integers(1, 2), n=st.integers(1, 3))
    def advance(self, stream: int, n: int) -> None:
        where = self.streams[stream]
        assert where is not None
        where.advance(n)

    @rule()
    def synchronize(self) -> None:
        self.pool.synchronize()
        assert self.pool.stats().pending_bytes == 0

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
        if block in self.references and block.stream is None:
            self.pinned[len(self.pinned)] = (block.array(np.uint8, block.nbytes)[: block.nbytes // 2], self.fill[block])
        return len(self.pinned) - 1

    @rule(key=consumes(views))
    def end_view(self, key: int) -> None:
        if key in self.pinned:
            self.pinned[key] = (np.empty(0, np.uint8), 0)

    @rule()
    def misuse(self) -> None:
        before = self.pool.state()
        for block in self.released[-2:]:
            with pytest.raises(DoubleFreeError):
                block.release()
            with pytest.raises(UseAfterFreeError):
                block.retain()
        for block in list(self.references)[:1]:
            with pytest.raises(ForeignFreeError):
                MemoryPool().free(block)
        assert self.pool.state() == before

    @rule(keep_bytes=st.sampled_from([0, 1000, 1 << 14]))
    def trim(self, keep_bytes: int) -> None:
        before = self.pool.stats()
        returned = self.pool.trim(keep_bytes)
        after = self.pool.stats()
        assert returned == before.reserved_bytes - after.reserved_bytes
        assert after.live_bytes == before.live_bytes

    @invariant()
    def the_books_balance(self) -> None:
        stats = self.pool.stats()
        assert stats.live_bytes + stats.cached_bytes + stats.pending_bytes == stats.reserved_bytes <= BUDGET
        assert stats.live_bytes >= stats.requested_bytes >= sum(block.nbytes for block in self.references)
        assert stats.peak_live_bytes >= stats.live_bytes
        assert stats.peak_reserved_bytes >= stats.reserved_bytes
        assert stats.num_live >= len(self.references)
        assert all(block.num_references == count > 0 for block, count in self.references.items())

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        state = self.pool.state()
        by_use: Counter[str] = Counter()
        for segment in state.segments:
            ends = [0, *(block.offset + block.nbytes for block in segment.blocks)]
            assert ends[:-1] == [block.offset for block in segment.blocks]
            assert ends[-1] == segment.nbytes
            for block in segment.blocks:
                by_use[block.state] += block.nbytes
        stats = state.stats
        assert (by_use["live"], by_use["free"], by_use["pending"]) == (
            stats.live_bytes,
            stats.cached_bytes,
            stats.pending_bytes,
        )
        listed = self.pool.store.free.blocks()
        assert len(listed) == len(set(listed)) == sum(each.num_free for each in state.classes)
        assert sum(block.nbytes for block in listed) == stats.cached_bytes
        spans = [(segment.address, segment.address + segment.nbytes) for segment in state.segments]
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))

    @invariant()
    def no_two_blocks_overlap(self) -> None:
        spans = sorted((block.address, block.address + block.block_bytes) for block in self.references)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))

    @invariant()
    def nobody_wrote_into_what_is_held(self) -> None:
        for block in self.references:
            if block.stream is None:
                assert (block.array(np.uint8, block.nbytes) == self.fill[block]).all()
        for array, fill in self.pinned.values():
            assert (array == fill).all()

    def teardown(self) -> None:
        for block, count in self.references.items():
            for _ in range(count):
                block.release()
        self.pinned.clear()
        self.pool.synchronize()
        self.pool.trim()
        stats = self.pool.stats()
        assert (stats.reserved_bytes, stats.live_bytes, stats.requested_bytes, stats.num_live) == (0, 0, 0, 0)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class ForgetsStreams(MemoryPool):
    """Takes every block back as if the host had used it, so without an event."""

    def settle(self, block):  # type: ignore[no-untyped-def]
        if block.references == 0:
            block.stream = None
        super().settle(block)


class ForgetsUse(MemoryPool):
    """Takes a block back without regard to the other streams that use it."""

    def settle(self, block):  # type: ignore[no-untyped-def]
        block.used_on = []
        super().settle(block)


@pytest.mark.parametrize("broken", [ForgetsStreams, ForgetsUse])
def test_the_machine_finds_a_broken_pool(broken: type[MemoryPool]) -> None:
    class BrokenMachine(PoolMachine):
        kind = broken

    every = settings(
        max_examples=1000,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    with pytest.raises((HazardError, AssertionError)):  # a stream's late write may also hit what the host holds
        run_state_machine_as_test(BrokenMachine, settings=every)
