"""The collector's figures of the front and of engines, as they are scraped."""

import os

from aie_engine import EngineStats
from aie_server.garbage_metrics import GarbageMetrics
from aie_server.metrics import Metrics


def samples(text):
    """Name with labels → value."""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_the_front_and_every_engine_of_its_own_process():
    registry = Metrics()
    metrics = GarbageMetrics(registry)
    metrics.collect("m", EngineStats(worker_pid=4711, gc_runs=3, gc_pause_s=0.5, gc_frozen=1000))
    metrics.collect("here", EngineStats(worker_pid=os.getpid(), gc_runs=9, gc_pause_s=9.0, gc_frozen=9))
    found = samples(registry.render())
    assert found['aie_python_gc_collections_total{process="m"}'] == 3
    assert found['aie_python_gc_pause_seconds_total{process="m"}'] == 0.5
    assert found['aie_python_gc_frozen_objects{process="m"}'] == 1000
    assert found['aie_python_gc_pause_seconds_total{process="front"}'] >= 0
    assert not any('process="here"' in name for name in found), "it has the front's collector"


def test_an_engine_that_was_started_again_counts_on():
    registry = Metrics()
    metrics = GarbageMetrics(registry)
    for runs in (5, 2):
        metrics.collect("m", EngineStats(worker_pid=4711, gc_runs=runs))
    assert samples(registry.render())['aie_python_gc_collections_total{process="m"}'] == 7
