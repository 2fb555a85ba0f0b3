"""How often Python's garbage collector ran in this process, and for how long nothing else did meanwhile.

A collection holds the interpreter's lock, so whoever waits for a token waits for it, too: P99 spikes are made of this.
Counted by the collector's own callbacks, which cost less than a microsecond a run.
"""

import gc
import time
from collections.abc import Callable, Mapping
from functools import lru_cache

__all__ = ["GarbageWatch", "watch_garbage"]


class GarbageWatch:
    """To be put into `gc.callbacks`. A process has one collector, which never runs twice at once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.runs = 0
        self.pause_s = 0.0
        self._clock = clock
        self._began_s: float | None = None

    @property
    def frozen(self) -> int:
        """Objects that were put aside after loading, and that no collection walks over."""
        return gc.get_freeze_count()

    def __call__(self, phase: str, _info: Mapping[str, int]) -> None:
        now = self._clock()
        if phase == "start":
            self._began_s = now
        elif self._began_s is not None:  # else it was put in during a collection
            self.runs += 1
            self.pause_s += now - self._began_s
            self._began_s = None


@lru_cache(maxsize=1)
def watch_garbage() -> GarbageWatch:
    """This process's; counts from the first call on."""
    watch = GarbageWatch()
    gc.callbacks.append(watch)
    return watch
