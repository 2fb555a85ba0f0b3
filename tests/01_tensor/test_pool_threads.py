"""One pool, many threads; and one thread that a garbage collection interrupts anywhere."""

import gc
import random
import threading
from collections.abc import Callable

import numpy as np

from aie_tensor import Allocation, DoubleFreeError, Ledger, MemoryPool, SimulatedStream


def run_threads(work: Callable[[int], None], count: int = 8) -> list[BaseException]:
    """`work(number)` in `count` threads that start together; what they raised."""
    start = threading.Barrier(count)
    raised: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_many_threads_share_one_pool() -> None:
    """Each thread writes its own number into every block it holds and finds it there again."""
    pool = MemoryPool(ledger=Ledger(enabled=True))
    shared = pool.allocate(100)

    def work(number: int) -> None:
        sizes = np.random.default_rng(number)
        for _ in range(150):
            blocks = [pool.allocate(int(sizes.integers(1, 20_000)), owner=f"thread {number}") for _ in range(3)]
            for block in blocks:
                block.array(np.uint8, block.nbytes)[...] = number
            shared.retain()
            for block in blocks:
                assert (block.array(np.uint8, block.nbytes) == number).all()
                block.release()
            shared.release()

    assert run_threads(work) == []
    assert shared.num_references == 1
    shared.release()
    stats = pool.stats()
    assert (stats.num_live, stats.live_bytes, stats.requested_bytes, stats.num_dropped) == (0, 0, 0, 0)
    assert stats.num_allocations == 8 * 150 * 3 + 1
    assert pool.ledger.outstanding() == []


def test_threads_with_streams_of_their_own_never_meet() -> None:
    """Each thread works on its stream, now and then behind; blocks wander between streams; one thread trims."""
    pool = MemoryPool(min_block=256, segment_bytes=1 << 14)

    def work(number: int) -> None:
        chance = random.Random(number)
        stream = SimulatedStream(f"stream {number}")
        for step in range(150):
            if number == 0:
                pool.trim()
            block = pool.allocate(chance.randrange(1, 3000), stream=stream if chance.random() < 0.7 else None)
            if block.stream is None:
                block.used_on(stream)
            stream.write(block, number * 16 + step % 16)
            stream.check(block, number * 16 + step % 16)
            block.release()
            if chance.random() < 0.4:
                stream.advance()
        stream.advance()

    assert run_threads(work) == []
    pool.synchronize()
    pool.trim()
    stats = pool.stats()
    assert (stats.reserved_bytes, stats.num_live, stats.num_allocations) == (0, 0, 8 * 150)


def test_of_many_releases_of_one_reference_one_succeeds() -> None:
    pool = MemoryPool()
    blocks = [pool.allocate(100) for _ in range(100)]
    succeeded: list[int] = []

    def work(number: int) -> None:
        for index, block in enumerate(blocks):
            try:
                block.release()
            except DoubleFreeError:
                continue
            succeeded.append(index)

    assert run_threads(work) == []
    assert sorted(succeeded) == list(range(100))
    assert pool.stats().num_live == 0


class Cycle:
    """Reachable from itself only; its finalizer uses the pool in every way."""

    def __init__(self, pool: MemoryPool, block: Allocation) -> None:
        self.me = self
        self.pool = pool
        self.block = block

    def __del__(self) -> None:
        self.block.release()
        self.pool.allocate(300).release()
        self.pool.trim()


def test_a_collection_may_interrupt_the_pool_anywhere() -> None:
    pool = MemoryPool(min_block=256, segment_bytes=1 << 13, ledger=Ledger(enabled=True))
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for step in range(300):
            Cycle(pool, pool.allocate(200 + step))
            held = [pool.allocate(256 << size) for size in range(4)]
            pool.stats()
            for block in held:
                block.release()
            if step % 3 == 0:
                pool.trim()
                pool.state()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    stats = pool.stats()
    assert (stats.num_live, stats.live_bytes, stats.requested_bytes) == (0, 0, 0)
    assert stats.cached_bytes == stats.reserved_bytes == sum(block.nbytes for block in pool.store.free.blocks())
    assert pool.ledger.outstanding() == []
