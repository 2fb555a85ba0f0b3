"""Runs a drill and finds its leak, as one would in a real server: from snapshots, the ledger and who holds what.

The file with the leak is not read for that. Where a leak was planted is compared with what was found at the end.
"""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aie_tensor.errors import InvalidInputError
from aie_tensor.memdebug.drills.catalog import DRILLS
from aie_tensor.memdebug.drills.engine import PERIOD, ScratchEngine, traffic
from aie_tensor.memdebug.growth import Growth, keeps_growing
from aie_tensor.memdebug.holders import cycles, holders
from aie_tensor.memdebug.snapshot import MemorySnapshot
from aie_tensor.memdebug.taking import take_snapshot
from aie_tensor.memory.allocation import Allocation
from aie_tensor.memory.ledger import Ledger
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.tensor import Tensor

__all__ = ["MIN_REQUESTS", "DrillReport", "run_clean", "run_drill"]

NUM_SNAPSHOTS = 3  # after each third of the traffic, so the first third is the warm-up
MIN_REQUESTS = NUM_SNAPSHOTS * PERIOD  # every fate befalls some request between two snapshots
ROOT = "local 'engine' → "  # where a chain from `_run` begins: known without saying
Place = tuple[str, int]  # file, line


@dataclass(frozen=True, slots=True)
class DrillReport:
    """What was found. Nothing in it but `planted` knows the answer."""

    name: str
    num_requests: int
    snapshots: tuple[MemorySnapshot, ...]
    growing: tuple[Growth, ...]  # what grew in every interval, most bytes first
    named: Place | None  # the line that asked for what grows most; None where nothing grows
    held_by: tuple[str, ...]  # from whoever is known to live down to one of the leaked handles
    in_cycles: tuple[str, ...]  # circles of references that hold a handle
    planted: Place | None  # None for a clean engine

    @property
    def found(self) -> bool:
        """The planted line was named; for a clean engine, none was."""
        return self.named == self.planted

    def lines(self) -> tuple[str, ...]:
        """The report in short: what grows and where from, and who holds it."""
        if not self.growing:
            return (f"nothing keeps growing over {self.num_requests} requests",)
        worst = self.growing[0]
        rate = "" if worst.bytes_per_1000 is None else f"{worst.bytes_per_1000:+,.0f} bytes per 1,000 requests, "
        chains = [text.split(ROOT)[-1] for text in self.held_by] or self.in_cycles or ["nobody that Python can name"]
        return (
            f"{worst.group.count} × {worst.group.what or 'unnamed'} still there, from {worst.group.stack[0]}",
            f"{rate}held by {chains[0]}",
        )


def run_drill(name: str, *, num_requests: int = 200, seed: int = 0, fixed: bool = False) -> DrillReport:
    """Serve `num_requests` with the engine of drill `name` (`fixed`: with its fix) and look for what keeps growing.

    InvalidInputError for a name that is none of `DRILLS`, fewer than `MIN_REQUESTS` requests, and a negative seed.
    """
    if name not in DRILLS:
        raise InvalidInputError(f"there is no drill {name!r}: choose one of {', '.join(DRILLS)}", param="drill")
    drill = DRILLS[name]
    pool = _pool()
    return _run(name, drill.engine(pool, fixed=fixed), num_requests, seed, None if fixed else drill.planted)


def run_clean(*, num_requests: int = 200, seed: int = 0) -> DrillReport:
    """As `run_drill`, with the engine that has no leak."""
    return _run("clean", ScratchEngine(_pool()), num_requests, seed, None)


def _pool() -> MemoryPool:
    ledger = Ledger(enabled=True, context=Owner(model="scratch", worker="drill", stage="aie_tensor"))
    return MemoryPool(name="scratch", ledger=ledger)


def _run(name: str, engine: ScratchEngine, num_requests: int, seed: int, planted: Place | None) -> DrillReport:
    if type(seed) is not int or seed < 0:
        raise InvalidInputError(f"a seed is a whole number of 0 or more, not {seed!r}", param="seed")
    if type(num_requests) is not int or num_requests < MIN_REQUESTS:
        raise InvalidInputError(
            f"a drill needs at least {MIN_REQUESTS} requests, not {num_requests}: growth shows between snapshots",
            param="num_requests",
        )
    ledger = engine.pool.ledger
    due = {num_requests * part // NUM_SNAPSHOTS for part in range(1, NUM_SNAPSHOTS + 1)}
    snapshots: list[MemorySnapshot] = []
    with _collector_off():
        for number, request in enumerate(traffic(num_requests, seed), start=1):
            engine.answer(request)
            ledger.count_request()
            if number in due:
                snapshots.append(take_snapshot([engine.pool], ledger, process="drill"))
        growing = tuple(keeps_growing(snapshots))
        named = _place(growing[0].group.stack[0]) if growing else None
        leaked = _handle_from(engine.pool, named) if named else None
        held_by = tuple(str(chain) for chain in holders(leaked)) if leaked else ()
        in_cycles = tuple(str(cycle) for cycle in cycles((Tensor,))) if growing else ()
    engine.close()
    return DrillReport(name, num_requests, tuple(snapshots), growing, named, held_by, in_cycles, planted)


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """As servers do for steady latencies; and so a drill ends the same way every time."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _handle_from(pool: MemoryPool, place: Place) -> Allocation | None:
    """One live handle that the line at `place` asked `pool` for."""
    for each in gc.get_objects():
        if isinstance(each, Allocation) and each.pool is pool and each.num_references and each.allocated_at:
            innermost = each.allocated_at[0]
            if (innermost.file, innermost.line) == place:
                return each
    return None


def _place(frame: str) -> Place:
    """File and line of a frame as text, "file:line in function"."""
    file, _, line = frame.rpartition(" in ")[0].rpartition(":")
    return str(Path(file).absolute()), int(line)
