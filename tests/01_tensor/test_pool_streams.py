"""Streams: a block changes streams only after its event. Work runs when the test says so."""

import pytest

from aie_tensor import Allocation, HazardError, Ledger, MemoryPool, OutOfMemoryError, SimulatedStream
from aie_tensor.memory import EventKind, MemoryEvent

MIB = 1 << 20


@pytest.fixture
def compute() -> SimulatedStream:
    return SimulatedStream("compute")


@pytest.fixture
def copy() -> SimulatedStream:
    return SimulatedStream("copy")


def use(block: Allocation, stream: SimulatedStream, byte: int) -> Allocation:
    stream.write(block, byte)
    stream.check(block, byte)
    return block


def test_the_same_stream_reuses_at_once(compute: SimulatedStream) -> None:
    pool = MemoryPool()
    first = use(pool.allocate(MIB, stream=compute), compute, 1)
    address = first.address
    first.release()
    second = use(pool.allocate(MIB, stream=compute), compute, 2)
    assert second.address == address
    compute.advance()


def test_another_stream_waits_for_the_event(compute: SimulatedStream, copy: SimulatedStream) -> None:
    pool = MemoryPool()
    first = use(pool.allocate(MIB, stream=compute), compute, 1)
    address = first.address
    first.release()
    held = [pool.allocate(MIB, stream=stream) for stream in (copy, None)]
    assert address not in [block.address for block in held]
    compute.advance()
    held.append(pool.allocate(MIB, stream=copy))
    assert held[-1].address == address


def test_what_the_host_freed_is_for_every_stream(compute: SimulatedStream) -> None:
    pool = MemoryPool()
    block = pool.allocate(MIB)
    address = block.address
    block.release()
    assert pool.allocate(MIB, stream=compute).address == address


def test_what_was_used_on_another_stream_is_pending(compute: SimulatedStream, copy: SimulatedStream) -> None:
    pool = MemoryPool()
    block = pool.allocate(MIB, stream=compute)
    block.used_on(compute)  # its own: nothing new
    block.used_on(None)
    block.used_on(copy)
    use(block, copy, 7)
    address = block.address
    block.release()
    stats = pool.stats()
    assert (stats.live_bytes, stats.pending_bytes, stats.cached_bytes) == (0, MIB, 0)
    assert pool.state().segments[0].blocks[0].state == "pending"
    assert pool.trim() == 0
    other = pool.allocate(MIB, stream=compute)
    assert other.address != address
    copy.advance()
    assert pool.stats().pending_bytes == 0
    assert pool.allocate(MIB, stream=compute).address == address


def test_host_blocks_can_be_used_on_a_stream(copy: SimulatedStream) -> None:
    pool = MemoryPool()
    block = pool.allocate(MIB)
    block.used_on(copy)
    use(block, copy, 1)
    address = block.address
    block.release()
    other = pool.allocate(MIB)
    assert other.address != address
    copy.advance()
    assert pool.allocate(MIB).address == address


def test_trim_leaves_what_a_stream_may_still_touch(compute: SimulatedStream) -> None:
    pool = MemoryPool()
    use(pool.allocate(MIB, stream=compute), compute, 1).release()
    assert pool.trim() == 0
    compute.advance()
    assert pool.trim() == MIB


def test_exact_blocks_go_back_after_their_event(compute: SimulatedStream) -> None:
    pool = MemoryPool()
    use(pool.allocate_exact(MIB, stream=compute), compute, 1).release()
    assert (pool.stats().pending_bytes, pool.stats().reserved_bytes) == (MIB, MIB)
    compute.advance()
    assert pool.stats().reserved_bytes == 0


def test_synchronize_waits_for_all(compute: SimulatedStream, copy: SimulatedStream) -> None:
    pool = MemoryPool()
    use(pool.allocate(MIB, stream=compute), compute, 1).release()
    other = pool.allocate(MIB)
    other.used_on(copy)
    use(other, copy, 2).release()
    pool.synchronize()
    assert compute.num_run == compute.num_queued
    assert pool.stats().pending_bytes == 0
    assert pool.trim() == 2 * MIB


def test_the_ladder_waits_for_streams_before_it_refuses(compute: SimulatedStream, copy: SimulatedStream) -> None:
    pool = MemoryPool(budget_bytes=2 * MIB)
    use(pool.allocate(MIB, stream=compute), compute, 1).release()
    pending = pool.allocate(MIB, stream=compute)
    pending.used_on(copy)
    use(pending, copy, 2).release()
    held = pool.allocate(2 * MIB)
    assert copy.num_run == copy.num_queued
    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)
    held.release()


def test_the_ladder_steals_a_larger_block_of_another_stream(compute: SimulatedStream) -> None:
    pool = MemoryPool(budget_bytes=MIB)
    held = [pool.allocate(64 << 10, stream=compute) for _ in range(16)]
    spare = held.pop()
    address = spare.address
    use(spare, compute, 3).release()
    compute.advance()
    small = pool.allocate(1024)
    assert (small.address, small.block_bytes) == (address, 64 << 10)
    assert pool.state().classes[0].num_reuses == 1


def test_events_tell_of_segments_and_of_pending_blocks(compute: SimulatedStream) -> None:
    told: list[MemoryEvent] = []
    pool = MemoryPool(ledger=Ledger(enabled=True))
    pool.ledger.sinks.append(told.append)
    block = pool.allocate(MIB, owner="staging")
    block.used_on(compute)
    use(block, compute, 1)
    block.retain().release()
    block.release()
    compute.advance()
    pool.trim()
    kinds = EventKind
    assert [event.kind for event in told] == [
        kinds.SEGMENT_RESERVE,
        kinds.ALLOCATE,
        kinds.RETAIN,
        kinds.RELEASE,
        kinds.RELEASE,
        kinds.FREE,
        kinds.REUSABLE,
        kinds.SEGMENT_RETURN,
    ]
    assert {event.address for event in told} == {told[0].address}
    assert all(event.owner.what == "staging" for event in told[1:7])


class CarelessPool(MemoryPool):
    """A pool with the classic fault: it forgets that streams run later."""

    def hand_out(self, block, nbytes, owner, stream):  # type: ignore[no-untyped-def]
        allocation = super().hand_out(block, nbytes, owner, stream)
        block.stream = None  # so no event is recorded at the release
        return allocation


@pytest.mark.parametrize("kind", [MemoryPool, CarelessPool])
def test_the_simulation_catches_a_pool_that_ignores_events(
    kind: type[MemoryPool], compute: SimulatedStream, copy: SimulatedStream
) -> None:
    pool = kind()
    first = use(pool.allocate(MIB, owner="logits", stream=compute), compute, 1)
    first.release()
    second = use(pool.allocate(MIB, stream=copy), copy, 2)
    compute.advance(1)  # the first was written …
    copy.advance()  # … the second stream writes its own …
    if kind is CarelessPool:
        with pytest.raises(HazardError, match="stream 'compute' found 1048576 of 1048576 bytes of 'logits'"):
            compute.advance()  # … and the first reads
    else:
        compute.advance()
    second.release()


def test_a_device_that_fails_at_the_release_leaves_the_books_balanced(compute: SimulatedStream) -> None:
    class Broken(SimulatedStream):
        def record(self):  # type: ignore[no-untyped-def]
            raise RuntimeError("the device is lost")

    pool = MemoryPool()
    block = pool.allocate(MIB, stream=Broken("broken"))
    with pytest.raises(RuntimeError):
        block.release()
    stats = pool.stats()
    assert (stats.live_bytes, stats.cached_bytes, stats.num_live) == (MIB, 0, 1)  # never to be reused, and so it says
