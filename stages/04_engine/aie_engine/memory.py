"""The engine's memory: one pool, one ledger, and where the ledger's events go.

Every byte that an engine holds for longer than a step is in the pool's books under an owner: weights as packed, norms
and tables, the KV slab and who holds which of its blocks, activations, step arrays, token ids. What belongs to others
(the mapped model file, the scratch of C threads) is listed there. Outside are Python's own objects and what a step of
NumPy makes and drops; a snapshot shows it as the difference to the process's resident memory.
"""

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

from aie_engine.config import EngineConfig
from aie_tensor import EventRing, Ledger, MemoryPool, Owner

if TYPE_CHECKING:
    from aie_tensor.memdebug import AllocationLog

__all__ = ["EngineMemory"]

_log = logging.getLogger("aie.engine")


class EngineMemory:
    """Made before anything is allocated, closed after everything was given back.

    model: the name that is served; worker: which process this is. Raises `InvalidInputError` or `EnvironmentLacksError`
    where the files that the configuration names cannot be written.
    """

    def __init__(self, config: EngineConfig, *, model: str = "", worker: str = "engine") -> None:
        self._worker = worker
        self.ledger = Ledger(
            enabled=config.memdebug,
            sample_every=config.memdebug_sample,
            context=Owner(model=model, worker=worker, stage="aie_engine"),
        )
        self.pool = MemoryPool(name=worker, ledger=self.ledger)
        with ExitStack() as cleanup:
            if config.memory_ring is not None:
                ring = EventRing.open(config.memory_ring)
                cleanup.callback(ring.close)
                self.ledger.sinks.append(ring.append)
            if config.memory_log is not None:
                from aie_tensor.memdebug import AllocationLog  # the tools are loaded where they are asked for

                log = AllocationLog(config.memory_log)
                cleanup.callback(_close_log, log)
                self.ledger.sinks.append(log.append)
            self._cleanup = cleanup.pop_all()

    def snapshot(self) -> dict[str, object]:
        """`MemorySnapshot.to_json()` of now. Consistent when called by the thread that runs the engine's steps."""
        from aie_tensor.memdebug import take_snapshot

        return take_snapshot([self.pool], self.ledger, process=self._worker).to_json()

    def close(self) -> None:
        """Close the files. Snapshots may still be taken."""
        self.ledger.sinks.clear()
        self._cleanup.close()


def _close_log(log: "AllocationLog") -> None:
    """Said only here: where a line could not be written, memory was being handed out, and nobody may wait for a log."""
    log.close()
    if log.error is not None:
        _log.error("%s", log.error)
