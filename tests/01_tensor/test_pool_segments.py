"""Segments: how reservations are cut, when they go back, and what the pool says of them."""

import pytest

from aie_tensor import InvalidInputError, MemoryPool, OutOfMemoryError, TrimPolicy

KIB, MIB = 1 << 10, 1 << 20


def test_small_blocks_share_a_reservation_and_large_ones_have_their_own() -> None:
    pool = MemoryPool()
    blocks = [pool.allocate(1000) for _ in range(3)]
    assert pool.stats().reserved_bytes == MIB
    assert [block.address - blocks[0].address for block in blocks] == [0, KIB, 2 * KIB]
    pool.allocate(256 * KIB)
    assert pool.stats().reserved_bytes == MIB + 256 * KIB


def test_classes_that_do_not_divide_a_segment_leave_nothing_uncounted() -> None:
    pool = MemoryPool(classes_per_doubling=2)
    block = pool.allocate(1500)
    (segment,) = pool.state().segments
    assert block.block_bytes == 1536
    assert segment.nbytes == len(segment.blocks) * 1536 <= MIB
    assert [each.offset for each in segment.blocks] == list(range(0, segment.nbytes, 1536))


def test_a_segment_goes_back_only_when_all_its_blocks_are_free() -> None:
    pool = MemoryPool()
    first, second = pool.allocate(KIB), pool.allocate(KIB)
    first.release()
    assert pool.trim() == 0
    second.release()
    assert pool.trim() == MIB
    assert pool.state().segments == ()


def test_one_block_alone_where_a_whole_segment_does_not_fit() -> None:
    pool = MemoryPool(budget_bytes=MIB + 4 * KIB)
    held = [pool.allocate(MIB)]
    held += [pool.allocate(KIB) for _ in range(4)]
    assert pool.stats().reserved_bytes == MIB + 4 * KIB
    with pytest.raises(OutOfMemoryError):
        pool.allocate(KIB)


def test_trim_keeps_what_it_is_told_to() -> None:
    pool = MemoryPool()
    for block in [pool.allocate(size * MIB) for size in (1, 2, 4, 8)]:
        block.release()
    assert pool.trim(keep_bytes=4 * MIB) == 12 * MIB  # the largest first
    assert pool.stats().cached_bytes == 3 * MIB
    assert pool.trim(keep_bytes=3 * MIB) == 0
    assert pool.trim() == 3 * MIB


def test_the_budget_returns_only_what_is_missing() -> None:
    pool = MemoryPool(budget_bytes=8 * MIB)
    for block in [pool.allocate(size * MIB) for size in (1, 2, 4)]:
        block.release()
    held = pool.allocate(3 * MIB + 1)  # takes the cached 4 MiB
    other = pool.allocate(3 * MIB + 1)  # 4 more: 1 and 2 are cached, 1 is left
    assert held.block_bytes == other.block_bytes == 4 * MIB
    assert pool.stats().reserved_bytes == 8 * MIB


def test_a_larger_block_is_better_than_none() -> None:
    """Of two blocks of 64 KiB in one segment one is live, so that the other cannot be returned, but it can be taken."""
    pool = MemoryPool(budget_bytes=MIB)
    pinned = pool.allocate(64 * KIB)
    small = pool.allocate(KIB)
    assert small.block_bytes == 64 * KIB
    assert pool.stats().reserved_bytes == MIB
    pinned.release()
    small.release()


def test_the_policy_bounds_the_cache() -> None:
    pool = MemoryPool(trim=TrimPolicy(max_cached_bytes=4 * MIB))
    blocks = [pool.allocate(2 * MIB) for _ in range(4)]
    for block in blocks:
        block.release()
        assert pool.stats().cached_bytes <= 4 * MIB
    assert pool.stats().reserved_bytes == 4 * MIB


def test_the_policy_returns_what_nobody_takes() -> None:
    pool = MemoryPool(trim=TrimPolicy(max_idle_allocations=8))
    pool.allocate(4 * MIB).release()
    pool.allocate(MIB).release()
    for _ in range(6):
        pool.allocate(MIB).release()
        assert pool.stats().cached_bytes == 5 * MIB
    for _ in range(2):
        pool.allocate(MIB).release()
    assert pool.stats().cached_bytes == MIB  # the one that is in use again and again


@pytest.mark.parametrize("value", [-1, True, 0.5])
def test_impossible_policies_are_refused(value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        TrimPolicy(max_cached_bytes=value)  # type: ignore[arg-type]
    assert caught.value.param == "max_cached_bytes"


def test_a_returned_segment_is_not_kept_by_old_handles() -> None:
    pool = MemoryPool()
    block = pool.allocate(MIB)
    segment = block._block.segment
    block.release()
    pool.trim()
    assert segment.region is None


def test_the_state_tells_every_block() -> None:
    pool = MemoryPool(name="scratch", min_block=64 * KIB, segment_bytes=MIB, budget_bytes=4 * MIB)
    live = pool.allocate(50_000, owner="logits")
    pool.allocate(60_000).release()
    exact = pool.allocate_exact(10_000, owner="weights")
    state = pool.state()
    assert (state.name, state.device, state.capacity_bytes) == ("scratch", "cpu", 4 * MIB)
    by_address = {segment.address: segment for segment in state.segments}
    cut = next(segment for segment in state.segments if segment.size_class == 64 * KIB)
    assert [block.state for block in cut.blocks] == ["live"] + ["free"] * 15
    assert (cut.blocks[0].owner, cut.blocks[0].requested_bytes) == ("logits", 50_000)
    assert (cut.blocks[1].owner, cut.blocks[1].requested_bytes) == ("", 0)
    assert by_address[live.address] is cut
    assert by_address[exact.address].size_class is None
    (used,) = state.classes
    assert (used.nbytes, used.num_live, used.num_free, used.num_pending) == (64 * KIB, 1, 15, 0)
    assert (used.num_allocations, used.num_reuses) == (2, 1)
    assert sum(segment.nbytes for segment in state.segments) == state.stats.reserved_bytes
