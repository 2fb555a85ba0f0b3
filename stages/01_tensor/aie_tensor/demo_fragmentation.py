"""The stage's demonstration, part 3: memory that is free and of no use. Run by `__main__`."""

import random
import tempfile
from collections import deque
from pathlib import Path

from aie_tensor.memdebug.blockmap import cells
from aie_tensor.memdebug.log import AllocationLog, read_log
from aie_tensor.memdebug.policies import compare_policies, render_policies
from aie_tensor.memory import Allocation, Ledger, MemoryPool

__all__ = ["show_fragmentation"]

KIB = 1 << 10
SEGMENT, BLOCK = 64 * KIB, 4 * KIB  # 16 blocks in a segment
NUM_BLOCKS = 64
NUM_LEFT = 5
NUM_REQUESTS = 600  # of the log that is replayed
HIDDEN_BYTES = 576 * 4  # one token's activations in SmolLM2-135M
POLICIES = ("pool-1", "pool-4", "exact", "best-fit", "buddy", "system")


def show_fragmentation() -> None:
    """Print what one living block pins, then what other allocators would have made of the same requests."""
    print("3. Fragmentation, made visible\n")
    _show_pinning()
    _show_policies()


def _show_pinning() -> None:
    free = cells(["free"], 1)
    print(f"   a) {NUM_BLOCKS} blocks of 4 KiB, cut from segments of 64 KiB: █ in use, {free} free\n")
    pool = MemoryPool(segment_bytes=SEGMENT)
    held = [pool.allocate(BLOCK, owner="request") for _ in range(NUM_BLOCKS)]
    _print_map(pool, "all in use")
    random.Random(0).shuffle(held)
    _release(held, NUM_LEFT)
    _print_map(pool, f"all but {NUM_LEFT} given back")
    _print_trim(pool)
    _release(held, NUM_LEFT - 3)
    _print_map(pool, "three more given back")
    _print_trim(pool)
    _release(held, 0)
    print(
        "\n      A segment goes back to the system only as a whole, so one block that lives on pins 16. That is\n"
        "      external fragmentation; rounding inside the blocks is internal.\n"
    )


def _release(held: list[Allocation], leave: int) -> None:
    while len(held) > leave:
        held.pop().release()


def _print_map(pool: MemoryPool, title: str) -> None:
    segments = sorted(pool.state().segments, key=lambda segment: segment.address)
    drawn = " ".join(cells([block.state for block in segment.blocks], len(segment.blocks)) for segment in segments)
    print(f"      {title + ':':<24}{drawn}")


def _print_trim(pool: MemoryPool) -> None:
    free_kib = pool.stats().cached_bytes // KIB
    returned_kib = pool.trim() // KIB
    print(f"      {'':<24}{free_kib} KiB are free; trim() can return {returned_kib} KiB of them")


def _show_policies() -> None:
    print(
        f"   b) The buffers of {NUM_REQUESTS} prompts, 8 to 24 in flight, recorded and replayed by other allocators\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.log"
        _record_prompts(path)
        results = compare_policies(read_log(path), POLICIES)
    print("\n".join(f"      {line}".rstrip() for line in render_policies(results, width=96).splitlines()))
    print(
        "\n      The system alone holds no more than it must, and each buffer pays for its page faults (part 1).\n"
        "      Of those that keep memory, best fit rounds least, and loses what it loses to holes that are each\n"
        "      too small. Classes round up and never split: one step finds a block as long as sizes come again.\n"
    )


def _record_prompts(path: Path) -> None:
    """Serve prompts of many lengths, which end in another order than they came, and log every allocation."""
    ledger = Ledger(enabled=True)
    log = AllocationLog(path)
    ledger.sinks.append(log.append)
    pool = MemoryPool(ledger=ledger)
    source = random.Random(0)
    held: deque[Allocation] = deque()
    for _ in range(NUM_REQUESTS):
        tokens = int(min(8192, max(1, source.lognormvariate(5.5, 0.8))))
        held.append(pool.allocate(tokens * HIDDEN_BYTES, owner="activations"))
        while len(held) > source.randint(8, 24):
            held.rotate(source.randrange(len(held)))
            held.popleft().release()
    for block in held:
        block.release()
    log.close()
