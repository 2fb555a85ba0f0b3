"""The stage's demonstration, part 4: why a freed block waits for its stream. Run by `__main__`.

A device works later than the program that queues its work. `SimulatedStream` is such a queue without a device: it does
what was queued only when told to, and finds out when bytes changed under it.
"""

import textwrap

import numpy as np

from aie_tensor.errors import HazardError
from aie_tensor.memory import Ledger, MemoryPool
from aie_tensor.memory.simulated import SimulatedStream

__all__ = ["show_streams"]

BLOCK = 64 << 10


def show_streams() -> None:
    """Print step by step who gets a block back, and what happens to work whose block was handed on too early."""
    print("4. Streams: a freed block may still be in use\n")
    print("   Work on a device is queued and runs later. `release` comes when it is queued, not when it is done.\n")
    _show_waiting()
    _show_hazard()


def _show_waiting() -> None:
    pool = MemoryPool(segment_bytes=BLOCK)  # one block at a time, so that the reader sees one move
    copy, compute = SimulatedStream("copy"), SimulatedStream("compute")
    tile = pool.allocate(BLOCK, owner="tile", stream=copy)
    first = tile.address
    copy.write(tile, 1)
    tile.release()
    print("   a) A tile is written on stream `copy` (queued, not run) and released. Who gets its block?\n")
    same = pool.allocate(BLOCK, owner="next tile", stream=copy)
    _print_step("the next request on `copy`", same.address == first, "whatever it queues comes after")
    copy.write(same, 2)
    same.release()
    early = pool.allocate(BLOCK, owner="scores", stream=compute)
    _print_step("a request on `compute`", early.address == first, "the event recorded on `copy` has not passed")
    copy.advance()
    late = pool.allocate(BLOCK, owner="scores", stream=compute)
    _print_step("the same, once `copy` has run", late.address == first, "the event has passed")
    for block in (early, late):
        block.release()


def _print_step(request: str, reused: bool, why: str) -> None:
    print(f"      {request:<31}{'the same block' if reused else 'another block':<16}{why}")


def _show_hazard() -> None:
    pool = MemoryPool(segment_bytes=BLOCK, ledger=Ledger(enabled=True))
    copy = SimulatedStream("copy")
    staging = pool.allocate(BLOCK, owner="staging")
    staging.array(np.uint8, BLOCK)[:] = 1
    copy.check(staging, 1)  # stands for a transfer that will read it
    staging.release()  # without `staging.used_on(copy)`: the pool knows nothing of the queued work
    taken = pool.allocate(BLOCK, owner="next request")
    taken.array(np.uint8, BLOCK)[:] = 9
    print("\n   b) A staging buffer of the host is read by work queued on `copy`, and nobody said `used_on(copy)`:\n")
    try:
        copy.advance()
        print("      nothing was noticed\n")
    except HazardError as error:
        print("\n".join(f"      {line}" for line in textwrap.wrap(str(error).splitlines()[0], 96)), end="\n\n")
    taken.release()
