"""A line in the log for every so many batches of a model: how large they were, who waits, what it comes to per second.

Nobody counts for it: a thread reads once a second the counters that are there anyway, and an engine is asked only if
the front saw something of it since. So it costs nothing per step, and nothing at all while nobody asks for anything;
and however small the batches are, there is one line a second at most, which says how many it is about.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from aie_engine import PredictorStats
from aie_server.batch_growth import Growth, Reading, reading_of_engine, reading_of_predictor
from aie_server.metrics_catalog import ServerMetrics
from aie_server.predictors import PredictorTable
from aie_server.request_book import RequestBook
from aie_server.served import ModelTable

__all__ = ["BatchLog", "batch_line"]

_EVERY_S = 1.0
_MIB = 1 << 20

_NOTHING = Reading(0, 0, {}, 0.0, {}, 0, 0)

_log = logging.getLogger("aie.batches")


@dataclass(slots=True)
class _Window:
    """Since a model's last line."""

    before: Reading
    last: Reading
    active_s: float = 0.0  # of the time between looks, what saw batches
    sign: tuple[float, float] = (-1.0, -1.0)  # what the front saw of it at the last look


class BatchLog:
    """`look` by hand, or `start` and `close`. num_batches: after how many a line is written."""

    def __init__(
        self,
        num_batches: int,
        models: ModelTable,
        predictors: PredictorTable,
        metrics: ServerMetrics,
        book: RequestBook,
        *,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert num_batches > 0, num_batches
        self._num_batches = num_batches
        self._models = models
        self._predictors = predictors
        self._metrics = metrics
        self._book = book
        self._every_s = every_s
        self._clock = clock
        self._looked_s = clock()
        self._windows: dict[str, _Window] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aie-batch-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """A second call does nothing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def look(self) -> None:
        """Write the lines that are due."""
        now_s = self._clock()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        has_open = self._book.has_open
        with self._models.lease_all() as models:
            for model in models:
                metrics = self._metrics.of_model(model.name)
                sign = (metrics.prompt_tokens.value, metrics.generation_tokens.value)
                window = self._windows.get(model.name)
                if window is not None and window.sign == sign and not has_open:
                    continue
                if model.engine.is_alive:
                    self._add(model.name, reading_of_engine(model.engine.stats()), passed_s).sign = sign
        for served in self._predictors:
            stats = served.predictor.stats()
            window = self._windows.get(served.name)
            if window is None or stats.batches != window.last.batches:
                self._add(served.name, reading_of_predictor(stats, _memory(stats)), passed_s)

    def _add(self, model: str, now: Reading, passed_s: float) -> _Window:
        window = self._windows.get(model)
        if window is None or now.batches < window.last.batches:  # new here, or another engine: it began with nothing
            window = self._windows[model] = _Window(_NOTHING, _NOTHING)
        if now.batches > window.last.batches:
            window.active_s += passed_s
        window.last = now
        growth = Growth(window.before, now, window.active_s)
        if growth.batches >= self._num_batches:
            _log.info("%s", batch_line(model, growth), extra={"fields": batch_fields(model, growth)})
            window.before, window.active_s = now, 0.0
        return window

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.look()
            except Exception:  # a log must not end for one look
                _log.exception("the batches could not be read")


def batch_line(model: str, growth: Growth) -> str:
    """For a person."""
    now = growth.now
    what = "batches" if now.cuts else "steps"
    parts = [
        f"{growth.batches} {what} in {growth.seconds:.1f} s, computing {100 * growth.busy_share:.0f} % of it",
        f"batch mean {growth.mean_size:.1f}, max {growth.max_size}",
        f"{now.running} running, {now.waiting} waiting",
    ]
    if now.kv_usage is not None:
        parts.append(f"KV cache {100 * now.kv_usage:.0f} %")
    if now.memory_bytes:
        parts.append(f"{now.memory_bytes / _MIB:.0f} MiB")
    parts += [f"{rate:.4g} {kind}/s" for kind, rate in growth.per_s.items()]
    if growth.cuts:
        parts.append("cut: " + " · ".join(f"{reason} {count}" for reason, count in growth.cuts.items()))
    return f"{model}: " + ", ".join(parts)


def batch_fields(model: str, growth: Growth) -> dict[str, object]:
    """For a program."""
    now = growth.now
    fields: dict[str, object] = {
        "model": model,
        "batches": growth.batches,
        "seconds": round(growth.seconds, 3),
        "busy": round(growth.busy_share, 4),
        "mean_batch": round(growth.mean_size, 3),
        "max_batch": growth.max_size,
        "running": now.running,
        "waiting": now.waiting,
    }
    if now.kv_usage is not None:
        fields["kv_usage"] = round(now.kv_usage, 4)
    if now.memory_bytes:
        fields["memory_bytes"] = now.memory_bytes
    fields |= {f"{kind.replace(' ', '_')}_per_s": round(rate, 3) for kind, rate in growth.per_s.items()}
    if growth.cuts:
        fields["cuts"] = dict(growth.cuts)
    return fields


def _memory(stats: PredictorStats) -> int | None:
    """Resident bytes of the workers; of this process where the model is in it."""
    total = 0
    for pid in {worker.pid for worker in stats.workers} or {0}:
        with suppress(psutil.Error):
            total += psutil.Process(pid or None).memory_info().rss
    return total or None
