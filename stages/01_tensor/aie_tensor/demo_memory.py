"""The stage's demonstration, parts 1 and 2: what reuse buys, and how misuse and leaks are caught. Run by `__main__`."""

import math
import random
import time

from aie_tensor.errors import DoubleFreeError
from aie_tensor.memory import Allocation, Ledger, MemoryPool
from aie_tensor.memory.replay import Allocator, FromNaive, FromNumpy, FromPool, FromSystem, Replay, replay

__all__ = ["show_misuse", "show_reuse"]

MIB = 1 << 20
HIDDEN_BYTES = 576 * 4  # one token's activations in SmolLM2-135M: 576 float32
COUNT = 200
WINDOW = 4  # buffers held at a time


def show_reuse() -> None:
    """Print two tables: one size again and again, then a new length each time."""
    print("1. What reuse buys")
    print(f"   {COUNT} buffers, {WINDOW} of them held at any time; each is written once per 4 KiB page.\n")
    print("   a) always 4 MiB, as a server whose inputs are all padded to one length:")
    _print_table([4 * MIB] * COUNT)
    print("\n   b) a new length each time (activations of prompts, log-normal around 665 tokens of 2304 bytes):")
    lengths = random.Random(0)
    _print_table([int(min(8192, max(1, lengths.lognormvariate(6.5, 0.8)))) * HIDDEN_BYTES for _ in range(COUNT)])
    print(
        "\n   `alloc` is take and give back (medians). `first touch` holds the page faults, the real cost: a\n"
        "   cached block has its pages already. NumPy asks a C library that caches too, unseen and unbounded.\n"
        "   The naive pool reuses equal sizes only, so in b) it hoards. Size classes pay with rounding and get\n"
        "   reuse for it.\n"
    )


def _print_table(sizes: list[int]) -> None:
    print(f"      {'':<14}{'alloc':>10}{'first touch':>14}{'reused':>9}{'peak asked':>13}{'peak reserved':>16}")
    allocators: list[Allocator] = [FromSystem(), FromNumpy(), FromNaive(), FromPool(MemoryPool())]
    for allocator in allocators:
        print("      " + _row(replay(sizes, allocator, window=WINDOW, clock=time.perf_counter)))


def _row(cost: Replay) -> str:
    reserved = "unknown" if cost.peak_reserved_bytes is None else f"{cost.peak_reserved_bytes / MIB:.0f} MiB"
    return (
        f"{cost.name:<14}{cost.allocation_us:>7.1f} µs{cost.touch_us:>11.1f} µs{cost.reuse:>9.0%}"
        f"{cost.peak_requested_bytes / MIB:>9.0f} MiB{reserved:>16}"
    )


def show_misuse() -> None:
    """Print a caught double free with both stacks, and a leak found by the ledger."""
    print("2. What reference counts and the ledger catch\n")
    pool = MemoryPool(ledger=Ledger(enabled=True))
    block = _prepare_request(pool)
    _finish_request(block)
    try:
        _clean_up_after_timeout(block)
    except DoubleFreeError as error:
        print("   a) A request finishes; then its timeout fires and frees the same memory again. Caught:\n")
        print(_indented(str(error)))
        print("\n      The exception itself was raised at the second free, in `_clean_up_after_timeout`.")
    print("\n   b) 200 requests; one in ten is cancelled, and its error path forgets the scratch memory:\n")
    before = pool.ledger.mark()
    forgotten = [held for number in range(200) if (held := _serve(pool, number))]
    for leak in pool.ledger.report(before):
        print(f"      {leak.count} × '{leak.owner}', {leak.nbytes:,} bytes still held, allocated at")
        print(f"        {leak.stack[0]}")
    stats = pool.stats()
    print(f"\n      The pool agrees: {stats.num_live} blocks live, {stats.requested_bytes:,} bytes asked for them.")
    for held in forgotten:
        held.release()
    _print_ledger_cost()


def _prepare_request(pool: MemoryPool) -> Allocation:
    return pool.allocate(MIB, owner="logits of request 7")


def _finish_request(block: Allocation) -> None:
    block.release()


def _clean_up_after_timeout(block: Allocation) -> None:
    block.release()


def _serve(pool: MemoryPool, number: int) -> Allocation | None:
    """Serve request `number`; returns the memory that the broken path forgets, so that the reader sees it live on."""
    scratch = pool.allocate(64 * 1024, owner="attention scratch")
    if number % 10 == 0:  # cancelled: leaves without a release
        return scratch
    scratch.release()
    return None


def _print_ledger_cost() -> None:
    off_us, on_us = (_cycle_us(MemoryPool(ledger=Ledger(enabled))) for enabled in (False, True))
    print(f"      Allocate and release, the best seen: {off_us:.1f} µs with the ledger off, {on_us:.1f} µs on.\n")


def _cycle_us(pool: MemoryPool) -> float:
    """Allocate and release: the best mean of 100 cycles in a row, in µs."""
    best = math.inf
    for _ in range(50):
        started = time.perf_counter()
        for _ in range(100):
            pool.allocate(MIB).release()
        best = min(best, time.perf_counter() - started)
    return best / 100 * 1e6


def _indented(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.splitlines())
