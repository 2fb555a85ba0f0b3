"""The books made right again after something was raised in the middle of an operation.

A Ctrl-C, a recursion limit or a device that fails may end an operation between any two calls, with a block taken from
its list and not yet handed out, or a count changed and its sum not. Undoing each step would cost every allocation; so
the pool looks at all blocks then, which costs nothing until it happens. What each block is, is certain at any moment:

    it has a reference or a view     live        (the handle sets its reference, and a view its count, when complete)
    its list or the pending has it   free, pending
    none of it                       nobody's: an operation was about to move it. It is given back

Two things stay lost, and only to this process: the end of a view or handle whose finalizer is interrupted itself, since
Python swallows that error; and what an upstream was returning when it was interrupted.
"""

import gc
import os
import sys
import threading
import weakref
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from aie_tensor.memory.segments import Block

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["mend", "mends", "renew_in_forks"]

_mending: set[CodeType] = set()
_pools: "weakref.WeakSet[MemoryPool]" = weakref.WeakSet()


def mends(code: CodeType) -> None:
    """Functions with this code call `mend` when something is raised in them."""
    _mending.add(code)


def renew_in_forks(pool: "MemoryPool") -> None:
    """In the child of a fork another thread may have been inside the pool, and that thread exists no more: it neither
    gives the lock back nor ends what it began."""
    _pools.add(pool)


def _after_fork() -> None:
    for pool in list(_pools):
        pool.lock = threading.RLock()
        pool.torn = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def mend(pool: "MemoryPool") -> None:
    """Called from a handler in an operation of `pool`, which has set `torn`. Puts it off to a later operation in one
    that runs inside another (a finalizer's, of a collection that the other started), since what the outer one has in
    its hands must stay there; so it does where the stack is too deep for it."""
    if _inside_another(sys._getframe(1)):
        return
    was_on = gc.isenabled()
    gc.disable()  # no finalizer may change what is looked at
    try:
        with pool.lock:
            _mend(pool)
            pool.torn = False
    finally:
        if was_on:
            gc.enable()


def _inside_another(frame: FrameType) -> bool:
    outer = frame.f_back
    while outer is not None:
        if outer.f_code in _mending:
            return True
        outer = outer.f_back
    return False


def _mend(pool: "MemoryPool") -> None:
    store = pool.store
    for segment in list(store.segments):
        if segment.region is None:  # about to be returned
            del store.segments[segment]
            continue
        for block in segment.blocks:
            if not (block.references or block.views) and block not in store.pending and not store.free.has(block):
                _give_back(pool, block)
    live = [block for segment in store.segments for block in segment.blocks if block.use == "live"]
    store.reserved_bytes = sum(segment.nbytes for segment in store.segments)
    store.pending.recount()
    pool.recount(len(live), sum(block.nbytes for block in live), sum(block.requested_bytes for block in live))


def _give_back(pool: "MemoryPool", block: Block) -> None:
    if block.recorded:
        pool.ledger.forget(block)
        block.recorded = False
    block.use = "live"  # where the device fails again, it stays so: nobody may have it
    block.requested_bytes = min(block.requested_bytes, block.nbytes)
    try:
        events = pool.store.events_behind(block)
    except Exception:
        return
    pool.store.retire(block, events)
