"""The replay of allocation traces: the figures of the stage's tables, with a clock that the test moves."""

import itertools

from aie_tensor import MemoryPool
from aie_tensor.memory.replay import FromNaive, FromNumpy, FromPool, FromSystem, replay

KIB = 1024


def unsegmented() -> MemoryPool:
    """A pool that takes a block at a time from the system."""
    return MemoryPool(segment_bytes=16 * KIB)


def ticking() -> float:
    return float(next(_ticks))


_ticks = itertools.count()


def test_equal_sizes_are_reused_by_both_pools() -> None:
    for allocator in (FromNaive(), FromPool(unsegmented())):
        cost = replay([8 * KIB] * 10, allocator, window=2, clock=ticking)
        assert cost.reuse == 0.8
        assert cost.peak_requested_bytes == cost.peak_reserved_bytes == 16 * KIB


def test_the_naive_pool_hoards_where_sizes_never_repeat() -> None:
    sizes = [8 * KIB - number for number in range(20)]
    naive = replay(sizes, FromNaive(), window=2, clock=ticking)
    pooled = replay(sizes, FromPool(unsegmented()), window=2, clock=ticking)
    assert (naive.reuse, naive.peak_reserved_bytes) == (0, sum(sizes))
    assert (pooled.reuse, pooled.peak_reserved_bytes) == (0.9, 16 * KIB)


def test_small_blocks_come_from_a_segment_that_serves_many() -> None:
    cost = replay([8 * KIB] * 10, FromPool(MemoryPool(segment_bytes=64 * KIB)), window=2, clock=ticking)
    assert (cost.reuse, cost.peak_reserved_bytes) == (0.9, 64 * KIB)  # the system was asked once


def test_times_are_medians_of_the_clock() -> None:
    cost = replay([KIB] * 4, FromNumpy(), window=1, clock=ticking)  # each reading of this clock is a second later
    assert (cost.allocation_us, cost.touch_us, cost.peak_reserved_bytes) == (1e6, 1e6, None)


def test_the_system_holds_only_what_is_asked() -> None:
    cost = replay([4 * KIB, 8 * KIB, 4 * KIB], FromSystem(), window=2, clock=ticking)
    assert cost.peak_reserved_bytes == cost.peak_requested_bytes == 12 * KIB


def test_everything_is_given_back_at_the_end() -> None:
    pool = MemoryPool()
    replay([KIB] * 10, FromPool(pool), window=3, clock=ticking)
    stats = pool.stats()
    assert (stats.num_live, stats.num_dropped, stats.num_allocations) == (0, 0, 10)
