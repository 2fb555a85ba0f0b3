"""What Python's garbage collector took: of the front's process, and of each engine's that has one of its own."""

import os

from aie_engine import EngineStats, watch_garbage
from aie_server.metrics import Metrics

__all__ = ["GarbageMetrics"]

FRONT = "front"


class GarbageMetrics:
    """Declares everything in `registry`; the front is read at each scrape."""

    def __init__(self, registry: Metrics) -> None:
        by_process = ("process",)
        self._runs = registry.counter(
            "python_gc_collections_total", "Garbage collections, by process: front, or an engine's model.", by_process
        )
        self._pause_s = registry.counter(
            "python_gc_pause_seconds_total", "Time for which they stopped their process.", by_process
        )
        self._frozen = registry.gauge(
            "python_gc_frozen_objects", "Objects put aside after loading, over which none walks.", by_process
        )
        watch_garbage()  # counts from now on
        registry.on_scrape(self._collect_front)

    def collect(self, model: str, stats: EngineStats) -> None:
        """An engine in the front's own process has no collector of its own."""
        if stats.worker_pid != os.getpid():
            self._set(model, stats.gc_runs, stats.gc_pause_s, stats.gc_frozen)

    def _collect_front(self) -> None:
        watch = watch_garbage()
        self._set(FRONT, watch.runs, watch.pause_s, watch.frozen)

    def _set(self, process: str, runs: int, pause_s: float, frozen: int) -> None:
        self._runs.labels(process).set_total(runs)
        self._pause_s.labels(process).set_total(pause_s)
        self._frozen.labels(process).set(frozen)
