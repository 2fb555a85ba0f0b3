"""Copying while computing, measured on one machine: `python benchmarks/overlap.py [--batches 24] [--json PATH]`.

1. Staging of a batch (images, compressed as in a PNG file → normalised float32 in a buffer) and computing it (a small
   convolutional network on one thread), one after the other on one stream, and overlapped on two. The best that overlap
   can bring is the sum of the two times over the longer one.
2. The same batches on 1, 2, 4 and 8 streams that each stage and compute, every one with its own executor and buffer.
   Up to the number of cores more streams bring more; beyond it they only compete, for cores and for caches.

Both run the same work on the same data, and the results are compared. Repeats take turns; times are medians.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from aie_engine.demo_overlap import (
    Executor,
    Images,
    Overlap,
    buffers,
    compressed,
    measure_overlap,
    network,
    runner,
    show_overlap,
    show_spans,
    spans_of,
    stage,
    timed,
)
from aie_engine.device_streams import StreamBuffer, StreamPool
from aie_engine.executors import make_stateless_executor
from aie_tensor import run_program

STREAMS = (1, 2, 4, 8)
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Streams:
    """All batches on so many streams."""

    num_streams: int
    seconds: float


@contextmanager
def executors(num: int, batch: int, report: Callable[[str], None]) -> Iterator[list[Executor]]:
    """One-threaded ones, each with its own arena."""
    with ExitStack() as cleanup:
        graph, made = network(), []
        for _ in range(num):
            made.append(make_stateless_executor(graph, report=report, num_threads=1, max_items=batch))
            cleanup.callback(made[-1].close)
        yield made


def on_streams(
    batches: Sequence[Images], made: Sequence[Executor], pool: StreamPool, own: Sequence[StreamBuffer]
) -> None:
    """Each batch whole on the stream whose turn it is."""
    places = {stream: index for index, stream in enumerate(pool)}
    for images in batches:
        stream = pool.next()
        buffer, run = own[places[stream]], runner(made[places[stream]])
        stream.submit(lambda images=images, buffer=buffer: stage(images, buffer), writes=[buffer])
        stream.submit(lambda buffer=buffer, run=run: run(buffer), reads=[buffer])
    pool.synchronize()


def measure_streams(batches: Sequence[Images], made: Sequence[Executor]) -> list[Streams]:
    """The numbers of streams take turns, so that a slow moment of the machine hits all of them."""
    own = buffers(max(STREAMS), len(batches[0]))
    times: dict[int, list[float]] = {num: [] for num in STREAMS}
    for repeat in range(REPEATS + 1):
        for num in STREAMS:
            with StreamPool(num) as pool:
                seconds = timed(lambda pool=pool: on_streams(batches, made, pool, own))  # type: ignore[misc]
            if repeat:  # the first is the warm-up
                times[num].append(seconds)
    return [Streams(num, median(times[num])) for num in STREAMS]


def show(overlap: Overlap, streams: Sequence[Streams], num_batches: int) -> None:
    """Both tables."""
    print("1. Staging and computing: one after the other, and overlapped\n")
    show_overlap(overlap, num_batches)
    print("2. Streams that stage and compute, in turn\n")
    print("   streams   ms per batch   against one")
    best = min(streams, key=lambda entry: entry.seconds)
    for entry in streams:
        mark = "   ◀ best" if entry is best else ""
        print(
            f"   {entry.num_streams:>7}{entry.seconds / num_batches * 1e3:>15.2f}"
            f"{streams[0].seconds / entry.seconds:>12.2f} ×{mark}"
        )
    worse = [entry.num_streams for entry in streams if entry.num_streams > best.num_streams]
    if worse:
        print(f"\n   More than {best.num_streams} are no faster on {os.cpu_count()} cores: they share what is there.")


def main(argv: Sequence[str] | None = None) -> int:
    """0 when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args(argv)
    random = np.random.default_rng(1)
    batches = [compressed(options.batch_size, random) for _ in range(options.batches)]
    with executors(max(STREAMS), options.batch_size, lambda line: print(line, file=sys.stderr)) as made:
        overlap = measure_overlap(batches, made[0], REPEATS)
        streams = measure_streams(batches, made)
        spans = spans_of(batches[:12], made[0])
    show(overlap, streams, options.batches)
    print()
    show_spans(spans)
    if options.json is not None:
        figures = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "num_batches": options.batches,
            "batch_size": options.batch_size,
            "overlap": asdict(overlap),
            "streams": [asdict(entry) for entry in streams],
        }
        options.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    run_program(main)
