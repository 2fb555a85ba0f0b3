"""What is counted of the garbage collector, and that it is counted at all."""

import gc

from aie_engine.garbage import freeze_what_lives
from aie_engine.garbage_watch import GarbageWatch, watch_garbage


def test_runs_and_pauses_are_counted_by_the_clock():
    times = iter([1.0, 1.25, 3.0, 3.5])
    watch = GarbageWatch(clock=lambda: next(times))
    for phase in ("start", "stop", "start", "stop"):
        watch(phase, {"generation": 2})
    assert (watch.runs, watch.pause_s) == (2, 0.75)


def test_who_comes_during_a_collection_does_not_count_half_of_it():
    watch = GarbageWatch(clock=lambda: 5.0)
    watch("stop", {"generation": 0})
    assert (watch.runs, watch.pause_s) == (0, 0.0)


def test_the_process_has_one_watch_and_it_sees_collections():
    watch = watch_garbage()
    assert watch is watch_garbage() and gc.callbacks.count(watch) == 1
    runs, pause_s = watch.runs, watch.pause_s
    gc.collect()
    assert watch.runs > runs and watch.pause_s > pause_s
    assert watch.frozen == gc.get_freeze_count()


def test_what_is_frozen_is_not_walked_over():
    try:
        freeze_what_lives()
        assert watch_garbage().frozen > 1000 and len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()
