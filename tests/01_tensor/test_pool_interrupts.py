"""An error from anywhere in the middle of the pool: a Ctrl-C, a recursion limit, a clock that fails.

Python lets a signal handler raise where a call begins or ends. A profiler is called at the same places and may raise
too, so the test does so at each of them in turn.
"""

import gc
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import aie_tensor.memory
from aie_tensor import InvalidInputError, Ledger, MemoryPool, SimulatedStream

POOL_FILES = {str(path) for path in Path(aie_tensor.memory.__file__).parent.glob("*.py")} - {
    str(Path(aie_tensor.memory.__file__).with_name("simulated.py"))
}


class Interrupt(BaseException):
    """As KeyboardInterrupt: nobody handles it."""


class Interrupter:
    """Raises at the place number `at` among those where a call in the pool's code begins or ends."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.raised = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        inside: FrameType | None = frame
        if event == "return" and frame.f_code.co_filename not in POOL_FILES:
            inside = frame.f_back  # back in the pool
        if self.raised or event == "c_call" or inside is None or inside.f_code.co_filename not in POOL_FILES:
            return
        # What is raised in a finalizer is swallowed, and with it the end that it was to report.
        while inside is not None:
            if inside.f_code.co_name == "__del__":
                return
            inside = inside.f_back
        self.left -= 1
        if self.left < 0:
            self.raised = True
            raise Interrupt


def use(pool: MemoryPool, streams: list[SimulatedStream]) -> None:
    """Each way through the pool once."""
    small, large, exact = pool.allocate(300), pool.allocate(1 << 15), pool.allocate_exact(100)
    view = small.array(np.uint8, 300)
    small.retain()
    small.release()
    small.release()
    del view
    first = pool.allocate(300, stream=streams[0])
    first.used_on(streams[1])
    first.release()
    pool.allocate(300, stream=streams[1]).release()
    pool.allocate(300, stream=streams[0])  # dropped
    large.release()
    exact.release()
    pool.adopt(100, owner="file").release()
    pool.synchronize()
    pool.trim()
    again = pool.allocate(100)
    hold = again.hold()
    again.release()
    del hold
    pool.stats()


@pytest.mark.parametrize(("fill", "ledger"), [("none", False), ("poison", True)])
def test_an_interrupt_anywhere_leaves_the_books_right(fill: str, ledger: bool) -> None:
    at, raised = 0, True
    while raised:
        pool = MemoryPool(
            min_block=256,
            max_block=1 << 14,
            segment_bytes=1 << 12,
            fill=fill,  # type: ignore[arg-type]
            ledger=Ledger(enabled=ledger),
        )
        streams = [SimulatedStream("compute"), SimulatedStream("copy")]
        interrupter = Interrupter(at)
        before = sys.getprofile()
        sys.setprofile(interrupter)
        try:
            use(pool, streams)
        except Interrupt:
            pass
        finally:
            sys.setprofile(before)
        stats = pool.stats()
        assert stats.live_bytes + stats.cached_bytes + stats.pending_bytes == stats.reserved_bytes
        assert sum(block.nbytes for block in pool.store.free.blocks()) == stats.cached_bytes
        for stream in streams:
            stream.advance()
        pool.synchronize()
        pool.trim()
        stats = pool.stats()
        left = (stats.reserved_bytes, stats.live_bytes, stats.requested_bytes, stats.num_live, stats.mapped_bytes)
        assert left == (0, 0, 0, 0, 0), at
        assert pool.ledger.outstanding() == []
        raised = interrupter.raised
        at += 1
    assert at > 500


def test_a_failing_clock_costs_no_block() -> None:
    def clock() -> float:
        if fails:
            raise RuntimeError("no time")
        return 0.0

    fails = True
    pool = MemoryPool(ledger=Ledger(enabled=True, clock=clock))
    with pytest.raises(RuntimeError):
        pool.allocate(100)
    stats = pool.stats()
    assert (stats.num_live, stats.live_bytes, stats.cached_bytes) == (0, 0, stats.reserved_bytes)
    fails = False
    assert pool.trim() == stats.reserved_bytes


def test_a_stack_too_deep_costs_no_block() -> None:
    """Somewhere down there the pool itself runs into the limit, at another call each time."""
    pool = MemoryPool()
    pool.allocate(100).release()
    num_failed = 0

    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        else:
            pool.allocate(100).release()

    for depth in range(sys.getrecursionlimit() + 100):  # versions of Python count their own frames differently
        try:
            dive(depth)
        except RecursionError:
            num_failed += 1
            if num_failed == 40:
                break
    gc.collect()
    stats = pool.stats()
    assert num_failed == 40
    assert (stats.num_live, stats.live_bytes, stats.cached_bytes) == (0, 0, stats.reserved_bytes)
    assert sum(block.nbytes for block in pool.store.free.blocks()) == stats.cached_bytes


def test_a_slab_that_is_interrupted_has_all_or_nothing() -> None:
    def clock() -> float:
        if next(ticks) == 2:
            raise Interrupt
        return 0.0

    ticks = iter(range(100))
    pool = MemoryPool(ledger=Ledger(enabled=True, clock=clock))
    slab = pool.slab(4, 10, owner="kv")
    with pytest.raises(Interrupt):
        slab.occupy("r-1", [0, 1, 2, 3])
    assert slab.state().used == ()
    assert pool.ledger.outstanding() == []
    slab.occupy("r-1", [0, 1, 2, 3])
    slab.vacate([0, 1, 2, 3])
    with pytest.raises(InvalidInputError):
        slab.occupy("r-1", [1.0])  # type: ignore[list-item]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads, and that is the point
def test_a_fork_while_another_thread_is_inside_the_pool() -> None:
    pool = MemoryPool()
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with pool.lock:
            inside.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:  # no assertion: nobody would catch it here
        signal.alarm(30)
        pool.allocate(100).release()
        os._exit(0 if pool.stats().num_live == 0 else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    with pool.allocate(100):
        assert pool.stats().num_live == 1
