"""Allocators compared on one machine: `python benchmarks/pool.py [--json PATH]`.

Replays three traces of buffer sizes through the system, NumPy, the naive pool and `MemoryPool` with 1, 2, 4 and 8 size
classes per doubling. Times are medians over the trace, for take and give back and for the first write to every page.
"""

import argparse
import json
import random
import time
from dataclasses import asdict
from pathlib import Path

from aie_tensor import MemoryPool
from aie_tensor.memory.replay import Allocator, FromNaive, FromNumpy, FromPool, FromSystem, Replay, replay

MIB = 1 << 20
COUNT = 1000
TOKEN_BYTES = 576 * 4  # activations of one token in SmolLM2-135M


def traces(seed: int) -> dict[str, list[int]]:
    """Sizes in bytes: one size; a few sizes in turn, as the layers of a model ask; a new length for each prompt."""
    source = random.Random(seed)
    prompts = [min(8192, max(1, int(source.lognormvariate(6.5, 0.8)))) for _ in range(COUNT)]
    layers = [256 * width * 4 for width in (576, 960, 1536, 1536, 576)]
    return {
        "one size (4 MiB)": [4 * MIB] * COUNT,
        "layers of one model, 256 tokens": [layers[step % len(layers)] for step in range(COUNT)],
        "a new prompt length each time": [tokens * TOKEN_BYTES for tokens in prompts],
    }


def allocators() -> list[Allocator]:
    """Fresh ones: a trace must not find another's cache."""
    pools = [FromPool(MemoryPool(classes_per_doubling=k), f"MemoryPool, {k}/doubling") for k in (1, 2, 4, 8)]
    return [FromSystem(), FromNumpy(), FromNaive(), *pools]


def row(cost: Replay) -> str:
    """One line of the table."""
    reserved = "unknown" if cost.peak_reserved_bytes is None else f"{cost.peak_reserved_bytes / MIB:.0f}"
    return (
        f"  {cost.name:<24}{cost.allocation_us:>10.1f}{cost.touch_us:>12.1f}{cost.reuse:>9.0%}"
        f"{cost.peak_requested_bytes / MIB:>11.0f}{reserved:>12}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--window", type=int, default=4, help="buffers held at any time")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures = {}
    for name, sizes in traces(options.seed).items():
        print(f"{name}: {COUNT} buffers, {options.window} held")
        print(f"  {'':<24}{'alloc µs':>10}{'touch µs':>12}{'reused':>9}{'asked MiB':>11}{'held MiB':>12}")
        costs = [replay(sizes, each, window=options.window, clock=time.perf_counter) for each in allocators()]
        print("\n".join(row(cost) for cost in costs), end="\n\n")
        figures[name] = [asdict(cost) for cost in costs]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
