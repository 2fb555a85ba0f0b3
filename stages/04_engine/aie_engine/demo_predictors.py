"""The demonstration of stage 4, parts 3 to 5: streams that overlap, a missing event, batches for two workers."""

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from aie_engine.build import Report
from aie_engine.demo_overlap import compressed, measure_overlap, network, show_overlap, show_spans, spans_of
from aie_engine.device_streams import CpuStream, MissingDependencyError, StreamBuffer, StreamChecker
from aie_engine.executors import make_stateless_executor
from aie_engine.predictors import LocalPredictor, PredictorClient, PredictorConfig, PredictRequest, WorkerPredictor
from aie_engine.predictors.requests import Array, Prediction

__all__ = ["show_missing_event", "show_predictors", "show_staging"]

_INPUT, _HIDDEN, _LABELS = 784, 256, 10


def show_staging(num_batches: int, report: Report) -> None:
    """Image batches staged on one stream and computed on another."""
    print("3. The next batch is staged while the present one is computed (streams backed by threads)\n")
    random = np.random.default_rng(1)
    batches = [compressed(16, random) for _ in range(num_batches)]
    executor = make_stateless_executor(network(), report=report, num_threads=1, max_items=16)
    try:
        show_overlap(measure_overlap(batches, executor, repeats=3), num_batches)
        show_spans(spans_of(batches, executor))
        print()
    finally:
        executor.close()


def show_missing_event() -> None:
    """The same without the event between the two."""
    print("4. An event is forgotten: the checker finds it on the first run, whatever the timing was\n")
    checker = StreamChecker()
    staging = StreamBuffer("staging", np.zeros(4, np.float32))
    with CpuStream("copy", checker=checker) as copy, CpuStream("compute", checker=checker) as compute:
        copy.submit(lambda: staging.array.fill(1), label="stage batch 0", writes=[staging])
        compute.wait_event(copy.record())
        compute.submit(staging.array.sum, label="run batch 0", reads=[staging])
        try:  # batch 1 into the same buffer; `copy.wait_event(compute.record())` is missing here
            copy.submit(lambda: staging.array.fill(2), label="stage batch 1", writes=[staging])
        except MissingDependencyError as error:
            shown = str(error).splitlines()
            first = next(line for line in shown[1:] if not line.endswith(":"))
            second = next(line for line in shown[shown.index("  the second was queued at:") :] if line[-1] != ":")
            print(f"   {shown[0].replace(', which', ',').replace(' and no', chr(10) + '   and no')}")
            print(f"     the first  {_short(first)}")
            print(f"     the second {_short(second)}\n")


def show_predictors(num_requests: int, report: Report) -> None:
    """A small network in this process, then in two; one request after another, then all at once."""
    print(f"5. {num_requests} requests to a network {_INPUT}-{_HIDDEN}-{_LABELS}: alone, in batches, by two workers\n")
    x = np.random.default_rng(2).standard_normal((num_requests, _INPUT), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        config = PredictorConfig(_write_network(Path(folder)), input_shape=(_INPUT,), max_wait_ms=2.0)
        local = LocalPredictor(config, report)
        try:
            began = time.perf_counter()
            alone = [_submit(local, [row])[0] for row in x[: num_requests // 4]]
            print(f"   {'one after another':<24}{len(alone) / (time.perf_counter() - began):8.0f} requests/s")
            together = _measure(local, x, "all at once")
        finally:
            local.close()
        workers = WorkerPredictor(config, 2, report)
        try:
            by_two = _measure(workers, x, "all at once, two workers")
            shares = Counter(prediction.batch.worker for prediction in by_two)
        finally:
            workers.close()
    print(f"\n   computed by worker 0: {shares[0]}, by worker 1: {shares[1]}")
    print(f"   the same bits alone and in a batch: {_num_same(alone, together)} of {len(alone)}; "
          f"in this process and in a worker: {_num_same(together, by_two)} of {num_requests}")  # fmt: skip


def _measure(predictor: PredictorClient, x: Array, what: str) -> list[Prediction]:
    before = predictor.stats().reasons
    began = time.perf_counter()
    found = _submit(predictor, x)
    seconds = time.perf_counter() - began
    reasons = Counter(predictor.stats().reasons) - Counter(before)
    sizes = [prediction.batch.size for prediction in found]
    print(f"   {what:<24}{len(x) / seconds:8.0f} requests/s   {sum(sizes) / len(sizes):5.1f} in a request's batch, cut "
          f"because {', '.join(f'{reason} {count}×' for reason, count in sorted(reasons.items()))}")  # fmt: skip
    return found


def _submit(predictor: PredictorClient, x: Array | list[Array]) -> list[Prediction]:
    futures = [predictor.submit(PredictRequest(str(index), {"x": row})) for index, row in enumerate(x)]
    return [future.result() for future in futures]


def _num_same(some: list[Prediction], others: list[Prediction]) -> int:
    pairs = zip(some, others, strict=False)  # the first of `others`, where `some` are fewer
    return sum(all(np.array_equal(a.outputs[name], b.outputs[name]) for name in a.outputs) for a, b in pairs)


def _write_network(folder: Path) -> Path:
    random = np.random.default_rng(0)
    path = folder / "mlp.npz"
    hidden = random.standard_normal((_HIDDEN, _INPUT), dtype=np.float32) / 28
    labels = random.standard_normal((_LABELS, _HIDDEN), dtype=np.float32) / 16
    weights: dict[str, Any] = {"1.weight": hidden, "2.weight": labels}
    np.savez(path, **weights)
    return path


def _short(frame: str) -> str:
    """Without the folders of the file."""
    return frame.strip().rsplit("/", 1)[-1]
