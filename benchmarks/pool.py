"""The memory pool measured on one machine: `python benchmarks/pool.py [--json PATH]`.

1. Taking a block and giving it back: the pool from a warm class, with the ledger off, sampled and full, against the
   naive pool, NumPy and fresh pages of the system; on a GPU, against CuPy's pool and raw allocations.
2. Three traces of buffer sizes through every allocator, with the first write to each page.
3. What rounding to size classes costs on the weight shapes of four published models (arithmetic, not timing).

Times are those of one thread. `median` is of many batches, `best` the quickest of them: on a machine with other work,
the one that says most about the code.
"""

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from aie_tensor import AieError, Ledger, MemoryPool, NaivePool
from aie_tensor.memory.cuda import CudaStream, CudaUpstream
from aie_tensor.memory.host import reserve_zeroed
from aie_tensor.memory.replay import Allocator, FromNaive, FromNumpy, FromPool, FromSystem, Replay, replay
from aie_tensor.memory.rounding import MODELS, POLICIES, waste

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096
COUNT = 1000  # buffers per trace
TOKEN_BYTES = 576 * 4  # activations of one token in SmolLM2-135M
LARGE = 16 * MIB  # the size at which the pool is judged against fresh pages
BATCHES = 60
MAX_CYCLE_US, MIN_RATIO, MAX_FULL_US = 3.0, 20.0, 15.0  # what the project asks of itself


@dataclass(frozen=True, slots=True)
class Cycle:
    """Take and give back."""

    name: str
    nbytes: int
    median_us: float
    best_us: float


def cycle(name: str, nbytes: int, once: Callable[[], object], *, per_batch: int = 200, batches: int = BATCHES) -> Cycle:
    """Time `once` in batches; the first batch is a warm-up."""
    times_us = []
    for _ in range(batches + 1):
        started = time.perf_counter()
        for _ in range(per_batch):
            once()
        times_us.append((time.perf_counter() - started) / per_batch * 1e6)
    return Cycle(name, nbytes, median(times_us[1:]), min(times_us[1:]))


def host_cycles() -> list[Cycle]:
    """The pool's ways of working, and what one would do without it."""
    rows = []
    for name, ledger in ledgers().items():
        pool = MemoryPool(ledger=ledger)
        rows += [cycle(f"MemoryPool, ledger {name}", size, pool_cycle(pool, size)) for size in (64 * KIB, LARGE)]
    pool = MemoryPool()
    rows.append(cycle("MemoryPool, each page written", LARGE, written(pool), per_batch=20))
    naive = NaivePool()
    rows.append(cycle("naive pool", LARGE, lambda: naive.give_back(naive.take(LARGE))))
    rows += [cycle("numpy.empty", size, numpy_cycle(size, touch=False)) for size in (64 * KIB, LARGE)]
    rows.append(cycle("numpy.empty, each page written", LARGE, numpy_cycle(LARGE, touch=True), per_batch=2, batches=20))
    rows.append(cycle("fresh mapping, untouched", LARGE, lambda: reserve_zeroed(LARGE), per_batch=20))
    rows.append(cycle("fresh mapping, each page written", LARGE, fresh_pages, per_batch=2, batches=20))
    return rows


def ledgers() -> dict[str, Ledger]:
    """By name, as the table shows them."""
    return {
        "off": Ledger(enabled=False),
        "sampled 1/64": Ledger(enabled=True, sample_every=64),
        "full": Ledger(enabled=True),
    }


def pool_cycle(pool: MemoryPool, nbytes: int) -> Callable[[], None]:
    """Allocate and release a block of `pool`."""

    def once() -> None:
        pool.allocate(nbytes, owner="benchmark").release()

    return once


def written(pool: MemoryPool) -> Callable[[], None]:
    """As `pool_cycle`, with an array on the block whose every page is written."""

    def once() -> None:
        with pool.allocate(LARGE, owner="benchmark") as block:
            block.array(np.uint8, LARGE)[::PAGE] = 1

    return once


def numpy_cycle(nbytes: int, *, touch: bool) -> Callable[[], None]:
    """`numpy.empty`, dropped at once; with `touch` each page is written."""

    def once() -> None:
        buffer = np.empty(nbytes, dtype=np.uint8)
        if touch:
            buffer[::PAGE] = 1

    return once


def fresh_pages() -> None:
    """What a pool spares: pages from the system, faulted in by the first write, and gone again."""
    reserve_zeroed(LARGE)[::PAGE] = 1


def device_cycles() -> list[Cycle] | str:
    """The same on a GPU; or in one line why not."""
    try:
        ours = MemoryPool(name="cuda", upstream=CudaUpstream())
    except AieError as error:
        return str(error)
    import cupy  # type: ignore[import-not-found, unused-ignore]

    runtime, theirs = cupy.cuda.runtime, cupy.cuda.MemoryPool()
    stream = CudaStream("benchmark")
    return [
        cycle("MemoryPool on CUDA", LARGE, pool_cycle(ours, LARGE)),
        cycle("MemoryPool on CUDA, on a stream", LARGE, lambda: ours.allocate(LARGE, stream=stream).release()),
        cycle(f"CuPy {cupy.__version__} MemoryPool", LARGE, lambda: theirs.malloc(LARGE)),
        cycle("cudaMalloc and cudaFree", LARGE, lambda: runtime.free(runtime.malloc(LARGE)), per_batch=10),
    ]


def print_cycles(rows: list[Cycle]) -> None:
    print(f"  {'':<36}{'size':>10}{'median µs':>12}{'best µs':>10}")
    for row in rows:
        size = f"{row.nbytes // KIB} KiB" if row.nbytes < MIB else f"{row.nbytes // MIB} MiB"
        print(f"  {row.name:<36}{size:>10}{row.median_us:>12.2f}{row.best_us:>10.2f}")


def verdicts(rows: list[Cycle]) -> dict[str, dict[str, float | bool]]:
    """What the project asks of the pool, from the best batches and from the medians."""
    by_key = {(row.name, row.nbytes): row for row in rows}
    off, full = (by_key[f"MemoryPool, ledger {name}", LARGE] for name in ("off", "full"))
    fresh, reused = (by_key[f"{name}, each page written", LARGE] for name in ("fresh mapping", "MemoryPool"))
    return {
        "allocate and release, ledger off, µs": _verdict(off.best_us, off.median_us, at_most=MAX_CYCLE_US),
        "allocate and release, ledger full, µs": _verdict(full.best_us, full.median_us, at_most=MAX_FULL_US),
        "times faster than fresh pages of 16 MiB": _verdict(
            fresh.best_us / off.best_us, fresh.median_us / off.median_us, at_least=MIN_RATIO
        ),
        "the same, with each page written in both": _verdict(
            fresh.best_us / reused.best_us, fresh.median_us / reused.median_us, at_least=MIN_RATIO
        ),
    }


def _verdict(
    best: float, middle: float, *, at_most: float | None = None, at_least: float | None = None
) -> dict[str, float | bool]:
    limit = at_most if at_most is not None else at_least
    assert limit is not None
    return {"best": best, "median": middle, "limit": limit, "met": best <= limit if at_most else best >= limit}


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
    """One line of the table of a trace."""
    reserved = "unknown" if cost.peak_reserved_bytes is None else f"{cost.peak_reserved_bytes / MIB:.0f}"
    return (
        f"  {cost.name:<24}{cost.allocation_us:>10.1f}{cost.touch_us:>12.1f}{cost.reuse:>9.0%}"
        f"{cost.peak_requested_bytes / MIB:>11.0f}{reserved:>12}"
    )


def device_allocators() -> list[Allocator]:
    """Those of a GPU, after a `device_cycles` that found one."""
    from aie_tensor.memory.cuda.replay import FromCudaMalloc, FromCudaPool, FromCupy

    pools = [FromCudaPool(MemoryPool(upstream=CudaUpstream(), classes_per_doubling=k)) for k in (1, 4)]
    for pool, k in zip(pools, (1, 4), strict=True):
        pool.name = f"MemoryPool on CUDA, {k}"
    return [FromCudaMalloc(), FromCupy(), *pools]


def print_traces(seed: int, window: int, on_gpu: bool) -> dict[str, list[dict[str, object]]]:
    figures = {}
    for name, sizes in traces(seed).items():
        print(f"{name}: {COUNT} buffers, {window} held")
        print(f"  {'':<24}{'alloc µs':>10}{'touch µs':>12}{'reused':>9}{'asked MiB':>11}{'held MiB':>12}")
        each_allocator = allocators() + (device_allocators() if on_gpu else [])
        costs = [replay(sizes, each, window=window, clock=time.perf_counter) for each in each_allocator]
        print("\n".join(row(cost) for cost in costs), end="\n\n")
        figures[name] = [asdict(cost) for cost in costs]
    return figures


def print_rounding() -> dict[str, dict[str, float]]:
    titles = ["exact" if policy is None else f"{policy}/doubling" for policy in POLICIES]
    print(f"  {'':<16}{'MiB':>8}" + "".join(f"{title:>13}" for title in titles))
    table = {}
    for model in MODELS:
        sizes = model.nbytes()
        shares = [waste(sizes, policy).share for policy in POLICIES]
        print(f"  {model.name:<16}{sum(sizes) / MIB:>8.0f}" + "".join(f"{share:>13.1%}" for share in shares))
        table[model.name] = dict(zip(titles, shares, strict=True))
    return table


def environment() -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
        "cpus": os.cpu_count() or 1,
        "threads measured": 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--window", type=int, default=4, help="buffers held at any time")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    where = environment()
    print(", ".join(f"{name} {value}" for name, value in where.items()), end="\n\n")

    print("1. Take and give back")
    rows = host_cycles()
    print_cycles(rows)
    device = device_cycles()
    if isinstance(device, str):
        print(f"  (GPU skipped: {device})")
    else:
        print_cycles(device)
    judged = verdicts(rows)
    print()
    for name, verdict in judged.items():
        word = "met" if verdict["met"] else "MISSED"
        print(
            f"  {name:<42}{verdict['best']:>9.1f} (median {verdict['median']:.1f}), limit {verdict['limit']:g}: {word}"
        )

    print("\n2. Traces (on a GPU, `touch` is the time to queue a write, not to do it)\n")
    figures = print_traces(options.seed, options.window, on_gpu=not isinstance(device, str))
    print("3. Rounding, as a share of what is reserved for bf16 weights\n")
    rounding = print_rounding()
    if options.json:
        everything = {
            "environment": where,
            "cycles": [asdict(each) for each in rows],
            "device": device if isinstance(device, str) else [asdict(each) for each in device],
            "judged": judged,
            "traces": figures,
            "rounding": rounding,
        }
        options.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
