"""The stage's demonstration, parts 1 and 2: what reuse buys, and what size classes cost. Run by `__main__`."""

import random
import time

from aie_tensor.memory import MemoryPool
from aie_tensor.memory.replay import Allocator, FromNaive, FromNumpy, FromPool, FromSystem, Replay, replay
from aie_tensor.memory.rounding import MODELS, POLICIES, waste

__all__ = ["show_reuse", "show_rounding"]

MIB = 1 << 20
HIDDEN_BYTES = 576 * 4  # one token's activations in SmolLM2-135M: 576 float32
COUNT = 200
WINDOW = 4  # buffers held at a time


def show_reuse() -> None:
    """Print two tables: one size again and again, then a new length each time."""
    print("1. What reuse buys\n")
    print(f"   {COUNT} buffers, {WINDOW} of them held at any time; each is written once per 4 KiB page.\n")
    print("   a) always 4 MiB, as a server whose inputs are all padded to one length:")
    _print_table([4 * MIB] * COUNT)
    print("\n   b) a new length each time (activations of prompts, log-normal around 665 tokens of 2304 bytes):")
    lengths = random.Random(0)
    _print_table([int(min(8192, max(1, lengths.lognormvariate(6.5, 0.8)))) * HIDDEN_BYTES for _ in range(COUNT)])
    print(
        "\n   `alloc` is take and give back (medians). `first touch` holds the page faults, the real cost: a\n"
        "   cached block has its pages already. `reused`: requests that did not go to the system. `peak asked` is\n"
        "   what the holders needed at most, `peak reserved` what the allocator kept for it. NumPy asks `malloc`,\n"
        "   which caches too, unseen and unbounded, and knows nothing of owners or streams. The naive pool reuses\n"
        "   equal sizes only, so in b) it hoards. Size classes pay with rounding and get reuse for it.\n"
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


def show_rounding() -> None:
    """Print the waste of each spacing of classes on the weights of four models."""
    titles = ["exact" if policy is None else str(policy) for policy in POLICIES]
    print("2. What size classes cost: the weights of four models in bfloat16\n")
    print(f"      {'':<16}{'weights':>9}   lost, of what is reserved, with so many classes per doubling:")
    print(f"      {'':<16}{'':>9}" + "".join(f"{title:>9}" for title in titles))
    for model in MODELS:
        sizes = model.nbytes()
        cells = "".join(f"{waste(sizes, policy).share:>9.1%}" for policy in POLICIES)
        print(f"      {model.name:<16}{sum(sizes) / MIB:>5.0f} MiB{cells}")
    print(
        "\n   1 is powers of two; `exact` is rounded to pages only. A model whose dimensions are powers of two\n"
        "   fits powers of two; 896 or 768 channels do not, and close to half of the memory would hold nothing.\n"
        "   So weights never go through classes: they are mapped from their file, or get exact blocks.\n"
    )
