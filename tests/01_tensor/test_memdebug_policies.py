"""Replays: each allocator keeps its own promises on any trace, and the figures are those of small traces by hand."""

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_tensor.errors import InvalidInputError, OutOfMemoryError
from aie_tensor.memdebug import LoggedEvent, logged
from aie_tensor.memdebug.policies import (
    POLICIES,
    BestFit,
    Buddy,
    ExactCache,
    Policy,
    PooledClasses,
    System,
    compare_policies,
    render_policies,
    replay_log,
    trace_of,
)
from aie_tensor.memory.events import EventKind
from aie_tensor.memory.ledger import Ledger
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.pool import MemoryPool

MIB = 1 << 20


def take(address: int, nbytes: int) -> LoggedEvent:
    return LoggedEvent(EventKind.ALLOCATE, 0.0, address, nbytes, nbytes, "", Owner(), ())


def end(address: int) -> LoggedEvent:
    return LoggedEvent(EventKind.FREE, 0.0, address, 0, 0, "", Owner(), ())


def segment(kind: EventKind, address: int, nbytes: int) -> LoggedEvent:
    return LoggedEvent(kind, 0.0, address, nbytes, nbytes, "", Owner(), ())


def ticking(step_s: float = 1e-6) -> Callable[[], float]:
    times: Iterator[int] = itertools.count()
    return lambda: next(times) * step_s


# ---- The trace


def test_a_trace_is_what_an_allocator_decides() -> None:
    events = [
        end(999),  # began before the log
        segment(EventKind.SEGMENT_RESERVE, 4096, 8192),
        take(64, 100),
        take(1 << 62, 500),  # a slab's block
        take(0, 500),  # a mapped file
        take(128, 0),
        LoggedEvent(EventKind.REQUEST, 0.0, 0, 0, 0, "", Owner(), ()),
        end(64),
        take(64, 300),
        take(64, 50),  # its end was lost
        segment(EventKind.SEGMENT_RETURN, 4096, 8192),
    ]
    trace = trace_of(events)
    assert trace.steps == ((0, 100), (1, 1), (0, 0), (2, 300), (2, 0), (3, 50))
    assert (trace.num_requests, trace.peak_step, trace.peak_requested_bytes) == (4, 3, 301)
    assert trace.peak_recorded_bytes == 8192


def test_a_log_without_segments_is_judged_by_its_blocks() -> None:
    assert trace_of([take(64, 100), take(128, 200), end(64)]).peak_recorded_bytes == 300


# ---- Promises of every policy


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 200_000), st.integers(0, 5)), max_size=60),
    limit=st.sampled_from([None, 400_000, 3 * MIB]),
)
def test_no_overlap_and_the_books_agree(name: str, steps: list[tuple[int, int]], limit: int | None) -> None:
    policy = POLICIES[name](limit)
    held: dict[int, int] = {}
    for nbytes, ending in steps:
        try:
            address = policy.take(nbytes)
        except OutOfMemoryError:
            assert limit is not None
            continue
        finally:
            for each in list(held)[: max(ending - 3, 0)]:
                policy.give_back(each)
                del held[each]
        assert address % 64 == 0
        assert all(address + nbytes <= other or other + size <= address for other, size in held.items())
        held[address] = nbytes
        usage = policy.usage()
        assert usage.live >= sum(held.values())
        assert usage.live + usage.free == policy.memory.reserved_bytes
        assert usage.largest_free <= usage.free
        assert limit is None or policy.memory.reserved_bytes <= limit
    for each in held:
        policy.give_back(each)
    assert policy.usage().live == 0


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_given_back_is_enough_for_the_same_again(name: str) -> None:
    policy = POLICIES[name](None)
    sizes = [random.Random(5).randint(1, 100_000) for _ in range(50)]
    for _ in range(3):
        for address in [policy.take(nbytes) for nbytes in sizes]:
            policy.give_back(address)
        first = policy.memory.peak_bytes
    assert policy.memory.peak_bytes == first


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "buddy"])
def test_idle_memory_is_given_up_before_a_request_fails(name: str) -> None:
    """Ten megabytes of small blocks, all free: a request for nine must get them."""
    policy = POLICIES[name](10 * MIB)
    for address in [policy.take(100_000) for _ in range(60)]:
        policy.give_back(address)
    assert policy.take(8 * MIB) > 0


# ---- Each by itself


def test_best_fit_takes_the_tightest_hole_and_merges() -> None:
    arena = BestFit(chunk_bytes=1024)
    a, b, c, d = (arena.take(size) for size in (256, 64, 512, 192))
    assert [b - a, c - a, d - a] == [256, 320, 832]
    arena.give_back(a)
    arena.give_back(c)
    assert arena.usage() == type(arena.usage())(256, 768, 512)
    assert arena.take(200) == a  # 256 fits tighter than 512
    arena.give_back(b)  # between a and c: merges with the hole after it
    assert arena.usage().largest_free == 576
    arena.give_back(d)
    assert arena.usage().largest_free == 768
    assert arena.memory.num_calls == 1


def test_best_fit_never_merges_across_chunks() -> None:
    arena = BestFit(chunk_bytes=1024)
    blocks = [arena.take(1024) for _ in range(3)]
    for block in blocks:
        arena.give_back(block)
    assert arena.usage().largest_free == 1024
    arena.take(2048)
    assert arena.memory.num_calls == 4


def test_buddies_merge_only_with_their_other_half() -> None:
    buddy = Buddy(chunk_bytes=4096, min_block=1024)
    a, b, c, d = (buddy.take(1000) for _ in range(4))
    assert sorted([a, b, c, d]) == [a + n * 1024 for n in range(4)]
    buddy.give_back(b)
    buddy.give_back(c)  # neighbours, but of different pairs
    assert buddy.usage().largest_free == 1024
    buddy.give_back(a)
    assert buddy.usage().largest_free == 2048
    buddy.give_back(d)
    assert buddy.usage().largest_free == 4096
    assert buddy.take(4096) == a


def test_buddy_rounds_to_powers_of_two() -> None:
    buddy = Buddy(chunk_bytes=4096, min_block=64)
    for nbytes, size in ((1, 64), (64, 64), (65, 128), (1025, 2048), (10_000, 16_384)):
        buddy.give_back(buddy.take(nbytes))
        before = buddy.usage().live
        buddy.take(nbytes)
        assert buddy.usage().live - before == size


def test_the_exact_cache_serves_equal_sizes_only() -> None:
    cache = ExactCache()
    cache.give_back(cache.take(1024))
    cache.give_back(cache.take(960))
    cache.give_back(cache.take(1000))  # 1024 with its alignment
    assert cache.memory.num_calls == 2
    assert cache.usage().free == 1984


def test_the_system_keeps_nothing() -> None:
    system = System()
    system.give_back(system.take(100))
    assert system.memory.reserved_bytes == 0
    assert system.memory.peak_bytes == 4096


def test_the_pool_is_the_real_one() -> None:
    policy = PooledClasses(4)
    policy.take(5000)
    assert policy.usage().live == 5120  # 4096 × 1.25
    assert policy.name == "pool, 4 per doubling"


# ---- Figures and table


def test_figures_of_a_small_log_by_hand() -> None:
    events = [take(64, 1000), take(128, 3000), end(64), take(64, 2000)]
    result = replay_log(events, Buddy(chunk_bytes=8192, min_block=1024), clock=ticking())
    assert (result.peak_requested_bytes, result.peak_reserved_bytes) == (5000, 8192)
    assert result.waste == 1 - 5000 / 8192
    assert result.internal == 1 - 5000 / (4096 + 2048)
    # 1024 given back next to 1024: they merge, and 2000 takes the other 2048 or this one; 2048 is free in one piece
    assert result.external == 0
    assert result.time_us == pytest.approx(1.0)
    assert (result.num_upstream_calls, result.num_failures) == (1, 0)


def test_holes_show_as_external() -> None:
    events = [take(64 * n, 1024) for n in range(1, 9)] + [end(64 * n) for n in range(1, 8, 2)] + [take(7777, 8192)]
    result = replay_log(events, BestFit(chunk_bytes=8192), clock=ticking())
    assert result.external == 0.75  # four holes of 1 KiB
    assert result.internal == 0
    assert result.num_upstream_calls == 2


def test_failures_are_counted_and_their_end_is_passed_over() -> None:
    events = [take(64, 6000), take(128, 6000), end(128), end(64), take(192, 6000)]
    result = replay_log(events, System(8192), clock=ticking())
    assert (result.num_failures, result.peak_requested_bytes) == (1, 6000)
    assert result.time_us is None


def recorded() -> list[LoggedEvent]:
    events: list[LoggedEvent] = []
    ledger = Ledger(True)
    ledger.sinks.append(lambda event: events.append(logged(event)))
    pool = MemoryPool(ledger=ledger, classes_per_doubling=1)
    draw = random.Random(1)
    held = []
    for step in range(400):
        held.append(pool.allocate(int(draw.lognormvariate(9, 2)) + 1, owner=Owner("scratch", f"r-{step}")))
        if len(held) > 12:
            held.pop(draw.randrange(len(held))).release()
    return events


def test_a_recorded_log_through_all_of_them() -> None:
    events = recorded()
    first, again = (compare_policies(events, clock=ticking()) for _ in range(2))
    assert first == again  # also the time, since the clock is ours
    results = {result.name: result for result in first}
    assert len(results) == 1 + len(POLICIES)
    assert len({result.peak_requested_bytes for result in first}) == 1
    assert results["as recorded"].peak_reserved_bytes == results["pool, 1 per doubling"].peak_reserved_bytes
    assert results["pool, 8 per doubling"].internal < results["pool, 1 per doubling"].internal  # type: ignore[operator]
    assert results["system each time"].num_upstream_calls == 400
    assert results["best fit, merging"].peak_reserved_bytes <= results["buddy"].peak_reserved_bytes


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_table(width: int) -> None:
    results = compare_policies(recorded(), clock=ticking())
    for unicode in (True, False):
        text = render_policies(results, width, unicode)
        assert max(map(len, text.splitlines())) <= width
        assert unicode or text.isascii()
    lines = render_policies(results, 80).splitlines()
    assert lines[0].split() == ["allocator", "reserved", "waste", "internal", "external", "calls", "failed", "µs"]
    assert lines[1].startswith("as recorded")
    assert len(lines[2:10]) == len(POLICIES)
    assert render_policies([]) == ""


def test_unknown_names_and_empty_logs_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="'jemalloc' is no policy: they are pool-1"):
        replay_log([take(64, 1)], "jemalloc")
    with pytest.raises(InvalidInputError, match="'x' is no policy"):
        compare_policies([take(64, 1)], ["x"])
    with pytest.raises(InvalidInputError, match="no allocation to replay"):
        compare_policies([end(64)])
    assert replay_log([], "exact").peak_requested_bytes == 0


def test_a_policy_may_be_anyones_own() -> None:
    policy: Policy = ExactCache()
    assert replay_log(trace_of([take(64, 100)]), policy).name == "exact-size cache"
