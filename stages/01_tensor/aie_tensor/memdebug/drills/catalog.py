"""The four drills, by name."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Protocol

from aie_tensor.memdebug.drills import cache, cycle, exception, logger
from aie_tensor.memdebug.drills.engine import ScratchEngine
from aie_tensor.memory.pool import MemoryPool

__all__ = ["DRILLS", "MARKER", "Drill"]

MARKER = "# the leak"


class BrokenEngine(Protocol):
    """A scratch engine with one leak, or with its fix."""

    def __call__(self, pool: MemoryPool, *, fixed: bool) -> ScratchEngine: ...


@dataclass(frozen=True, slots=True)
class Drill:
    """One classic leak: the engine that has it, and what there is to say of it."""

    name: str
    engine: BrokenEngine
    file: Path  # where it is planted
    title: str
    happened: str
    why: str  # why Python did not free it
    fix: str

    @property
    def planted(self) -> tuple[str, int]:
        """File and line of the marker: the answer, for the one who marks the exam. `run_drill` finds it without."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        (line,) = (number for number, text in enumerate(lines, start=1) if text.endswith(MARKER))
        return str(self.file), line

    @property
    def explain(self) -> str:
        """What happened, why Python did not free it, and the fix: three paragraphs."""
        return f"What happened: {self.happened}\nWhy Python did not free it: {self.why}\nThe fix: {self.fix}"


def _drill(engine: BrokenEngine, module: ModuleType, title: str) -> Drill:
    """Its name and its texts are those of the module."""
    name = module.__name__.rpartition(".")[2]
    return Drill(name, engine, Path(inspect.getfile(module)), title, module.HAPPENED, module.WHY, module.FIX)


_ALL = (
    _drill(exception.ExceptionEngine, exception, "an error kept, with the traceback that holds the activations"),
    _drill(cycle.CycleEngine, cycle, "a call and its callback that hold each other"),
    _drill(cache.CacheEngine, cache, "a cache keyed by what never comes again"),
    _drill(logger.LoggerEngine, logger, "a log handler that keeps its records"),
)
DRILLS: Mapping[str, Drill] = MappingProxyType({drill.name: drill for drill in _ALL})
