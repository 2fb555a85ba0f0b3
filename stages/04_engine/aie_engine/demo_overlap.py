"""The demonstration of stage 4, part 3: the next batch is staged while the present one is computed.

The work is that of an image classifier: decoding and normalising on one side, a small network on the other. Both leave
Python's lock alone while they work, so on two cores they run at the same time. `benchmarks/overlap.py` measures more of
it.
"""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from aie_engine.device_streams import CpuStream, StagedPipeline, StreamBuffer
from aie_engine.executors import NativeStatelessExecutor, StatelessExecutor
from aie_loader import Graph, Node, infer_shapes
from aie_tensor import AieError, Matrix

__all__ = [
    "IMAGE",
    "Executor",
    "Images",
    "Overlap",
    "both_share",
    "buffers",
    "compressed",
    "measure_overlap",
    "network",
    "runner",
    "show_overlap",
    "show_spans",
    "spans_of",
    "stage",
    "timed",
]

Images = list[bytes]  # of one batch, each compressed
Floats = npt.NDArray[np.float32]
Executor = NativeStatelessExecutor | StatelessExecutor

IMAGE = (3, 96, 96)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds for all batches."""

    stage_s: float
    run_s: float
    serial_s: float
    overlapped_s: float

    @property
    def gain(self) -> float:
        return self.serial_s / self.overlapped_s

    @property
    def best_gain(self) -> float:
        """If the shorter of the two vanished behind the longer one."""
        return (self.stage_s + self.run_s) / max(self.stage_s, self.run_s)


def network() -> Graph:
    """Two convolutions and a classifier; weights from a seed."""
    random = np.random.default_rng(0)
    shapes = {"c1": (8, 3, 3, 3), "c2": (8, 8, 3, 3), "fc": (10, 8)}
    weights = {
        name: Matrix.from_array(random.standard_normal(shape, dtype=np.float32) / 8) for name, shape in shapes.items()
    }
    nodes = [
        Node("h1", "conv2d", ("x", "c1"), {"stride": (2, 2)}),
        Node("a1", "relu", ("h1",)),
        Node("h2", "conv2d", ("a1", "c2"), {"stride": (2, 2)}),
        Node("a2", "relu", ("h2",)),
        Node("mean", "global_avg_pool", ("a2",)),
        Node("y", "linear", ("mean", "fc")),
    ]
    return infer_shapes(Graph(("x",), nodes, ("y",), weights), {"x": ("B", *IMAGE)})


def compressed(batch_size: int, random: np.random.Generator) -> Images:
    """A batch of gradients with some noise, rows of pixels as a PNG file has them; no more compressible than photos."""
    height, width = IMAGE[1:]
    ramp = np.linspace(0, 200, width)[None, :, None] + random.integers(0, 32, (batch_size, height, width, 3))
    return [zlib.compress(image.tobytes()) for image in ramp.astype(np.uint8)]


def stage(images: Images, buffer: StreamBuffer) -> None:
    """What preprocessing does: decode, channels first, floats around 0. Each step is a loop in C without the lock."""
    for place, image in zip(buffer.array, images, strict=True):
        pixels = np.frombuffer(zlib.decompress(image), np.uint8).reshape(*IMAGE[1:], IMAGE[0])
        np.copyto(place, pixels.transpose(2, 0, 1))
    np.multiply(buffer.array, np.float32(2 / 255), out=buffer.array)
    np.subtract(buffer.array, np.float32(1), out=buffer.array)


def stage_all(batches: Sequence[Images], buffer: StreamBuffer) -> None:
    """One after another into the same buffer."""
    for images in batches:
        stage(images, buffer)


def runner(executor: Executor) -> Callable[[StreamBuffer], Floats]:
    """A run of the network over a staged batch."""

    def run(buffer: StreamBuffer) -> Floats:
        found: Floats = executor.run({"x": buffer.array})["y"]
        return found

    return run


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def buffers(num: int, batch: int) -> list[StreamBuffer]:
    """Staging buffers, their pages touched."""
    return [StreamBuffer(f"staging {index}", np.zeros((batch, *IMAGE), np.float32)) for index in range(num)]


def measure_overlap(batches: Sequence[Images], executor: Executor, repeats: int = 5) -> Overlap:
    """One stream against two."""
    own, run = buffers(2, len(batches[0])), runner(executor)
    times: dict[str, list[float]] = {name: [] for name in ("stage", "run", "serial", "overlapped")}
    with CpuStream("copy") as copy, CpuStream("compute") as compute:
        serial = StagedPipeline(stage, run, copy=compute, compute=compute, buffers=own[:1])
        overlapped = StagedPipeline(stage, run, copy=copy, compute=compute, buffers=own)
        expected, found = serial.map(batches), overlapped.map(batches)  # the warm-up, too
        if any(not np.array_equal(a, b) for a, b in zip(expected, found, strict=True)):
            raise AieError("overlapped batches gave other results than batches one after the other")
        for _ in range(repeats):
            times["stage"].append(timed(lambda: stage_all(batches, own[0])))
            times["run"].append(timed(lambda: [run(own[0]) for _ in batches]))
            times["serial"].append(timed(lambda: serial.map(batches)))
            times["overlapped"].append(timed(lambda: overlapped.map(batches)))
    return Overlap(*(median(times[name]) for name in ("stage", "run", "serial", "overlapped")))


def spans_of(batches: Sequence[Images], executor: Executor) -> dict[str, list[tuple[float, float]]]:
    """When each piece of work began and ended, overlapped, by stream; seconds from the first beginning."""
    spans: dict[str, list[tuple[float, float]]] = {"copy": [], "compute": []}
    run = runner(executor)

    def staging(images: Images, buffer: StreamBuffer) -> None:
        began = time.perf_counter()
        stage(images, buffer)
        spans["copy"].append((began, time.perf_counter()))

    def running(buffer: StreamBuffer) -> None:
        began = time.perf_counter()
        run(buffer)
        spans["compute"].append((began, time.perf_counter()))

    with CpuStream("copy") as copy, CpuStream("compute") as compute:
        pipeline = StagedPipeline(staging, running, copy=copy, compute=compute, buffers=buffers(2, len(batches[0])))
        pipeline.map(batches)
    first = spans["copy"][0][0]
    return {name: [(began - first, ended - first) for began, ended in found] for name, found in spans.items()}


def both_share(spans: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    """In what part of the whole time both streams were at work, 0 to 1."""
    both = sum(max(0.0, min(a_end, b_end) - max(a, b)) for a, a_end in spans["copy"] for b, b_end in spans["compute"])
    return both / max(ended for found in spans.values() for _, ended in found)


def show_overlap(overlap: Overlap, num_batches: int) -> None:
    """As a table."""
    print(f"   {'staging alone':<28}{overlap.stage_s / num_batches * 1e3:8.2f} ms per batch")
    print(f"   {'computing alone':<28}{overlap.run_s / num_batches * 1e3:8.2f}")
    print(f"   {'one stream':<28}{overlap.serial_s / num_batches * 1e3:8.2f}")
    print(f"   {'copy and compute streams':<28}{overlap.overlapped_s / num_batches * 1e3:8.2f}")
    print(f"\n   {overlap.gain:.2f} × as fast; {overlap.best_gain:.2f} × if the shorter work cost nothing\n")


def show_spans(spans: Mapping[str, Sequence[tuple[float, float]]], columns: int = 72) -> None:
    """Two lines over time; a batch is its last digit."""
    slice_s = max(ended for found in spans.values() for _, ended in found) / columns
    print(f"   Who was at work when; a column is {slice_s * 1e3:.1f} ms, a digit the batch:\n")
    for name, found in spans.items():
        line = ["·"] * columns
        for number, (began, ended) in enumerate(found):
            for column in range(int(began / slice_s), min(int(ended / slice_s) + 1, columns)):
                line[column] = str(number % 10)
        print(f"   {name:<8} {''.join(line)}")
    print(f"\n   Both were at work for {both_share(spans):.0%} of the time.")
