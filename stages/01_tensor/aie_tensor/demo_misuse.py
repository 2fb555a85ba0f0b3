"""The stage's demonstration, part 5: how misuse is caught, and what watching costs. Run by `__main__`."""

import ctypes
import math
import textwrap
import time

import numpy as np

from aie_tensor.errors import DoubleFreeError, UseAfterFreeError, WriteAfterFreeError
from aie_tensor.memory import Allocation, Ledger, MemoryPool

__all__ = ["show_misuse"]

MIB = 1 << 20


def show_misuse() -> None:
    """Print a double free with both stacks, a use after free and a write after free, and the ledger's price."""
    print("5. Misuse, caught\n")
    pool = MemoryPool(ledger=Ledger(enabled=True))
    block = _prepare_request(pool)
    _finish_request(block)
    try:
        _clean_up_after_timeout(block)
    except DoubleFreeError as error:
        print("   a) A request finishes; then its timeout fires and frees the same memory again:\n")
        print(_indented(str(error)))
        print("\n      The exception itself was raised at the second free, in `_clean_up_after_timeout`.\n")
    try:
        block.array(np.float32, 16)
    except UseAfterFreeError as error:
        print(f"   b) Somebody still has the handle and asks for an array:\n\n      {_first_line(error)}\n")
    _show_write_after_free()
    _print_ledger_cost()


def _prepare_request(pool: MemoryPool) -> Allocation:
    return pool.allocate(MIB, owner="logits of request 7")


def _finish_request(block: Allocation) -> None:
    block.release()


def _clean_up_after_timeout(block: Allocation) -> None:
    block.release()


def _show_write_after_free() -> None:
    """A raw address outlives its block: no count can see that, poison can."""
    pool = MemoryPool(fill="poison", ledger=Ledger(enabled=True))
    block = pool.allocate(4096, owner="staging")
    address = block.address
    block.release()
    ctypes.c_ubyte.from_address(address + 100).value = 7  # as native code would that kept the pointer
    try:
        pool.allocate(4096, owner="next request").release()
    except WriteAfterFreeError as error:
        print("   c) Native code kept the pointer and writes to the freed block. No count sees that; poison does, when")
        print('      the block is next used, in a pool made with `fill="poison"`:\n')
        print(_indented("\n".join(textwrap.wrap(_first_line(error), 96))), end="\n\n")


def _print_ledger_cost() -> None:
    ledgers = (Ledger(False), Ledger(True, sample_every=64), Ledger(True))
    off_us, sampled_us, full_us = (_cycle_us(MemoryPool(ledger=ledger)) for ledger in ledgers)
    print(
        f"   The price of knowing: allocate and release takes {off_us:.1f} µs with the ledger off,\n"
        f"   {sampled_us:.1f} µs when it records one in 64, {full_us:.1f} µs when it records all (the best seen).\n"
    )


def _cycle_us(pool: MemoryPool) -> float:
    """Allocate and release: the best mean of 100 cycles in a row, in µs."""
    best = math.inf
    for _ in range(50):
        started = time.perf_counter()
        for _ in range(100):
            pool.allocate(MIB).release()
        best = min(best, time.perf_counter() - started)
    return best / 100 * 1e6


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _indented(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.splitlines())
