"""Rounds of equal traffic with a look at the server's memory after each, while nothing is under way."""

import asyncio
import json
import time
from dataclasses import dataclass

from aie.doctor.asking import Asker, get
from aie.doctor.loop import Send, closed_loop
from aie.doctor.measured import MemoryRounds
from aie.doctor.processes import Process
from aie.doctor.server import look_at_metrics

__all__ = ["MemoryGauge", "run_rounds"]

_CLIENTS = 4
_SETTLE_S = 0.1
_ROUNDS = 12
_FEWEST = 4  # requests in a round


@dataclass(slots=True)
class MemoryGauge:
    """Resident memory, of the server's processes where they run here, else as its metrics tell."""

    asker: Asker
    process: Process | None
    has_metrics: bool
    source: str = ""
    _block_bytes: int | None = None

    async def prepare(self) -> None:
        """Asks for the size of a block of the KV cache, which only ours tells."""
        text = await get(self.asker.endpoint, f"/debug/memory?model={self.asker.model}") if self.has_metrics else None
        try:
            pools = json.loads(text or "{}")[self.asker.model]["pools"]
            self._block_bytes = max(int(slab["block_bytes"]) for pool in pools for slab in pool["slabs"])
        except (ValueError, KeyError, TypeError, RecursionError):
            self._block_bytes = None

    async def read(self) -> tuple[int, int | None] | None:
        """Bytes, and how many of them are KV blocks that were used at least once; None where nobody tells."""
        look = await look_at_metrics(self.asker.endpoint, self.asker.model) if self.has_metrics else None
        blocks = None
        if look is not None and self._block_bytes is not None and "blocks_cached" in look.model.gauges:
            used = look.model.gauges["blocks_cached"] + look.model.gauges.get("blocks_used", 0.0)
            blocks = int(used * self._block_bytes)
        rss = None if self.process is None else self.process.rss_bytes()
        if rss is not None:
            self.source = "resident memory of its processes"
            return rss, blocks
        if look is not None and look.memory:
            self.source = "memory by its own metrics"
            return int(look.memory), blocks
        return None


async def run_rounds(send: Send, gauge: MemoryGauge, most: int, until_s: float) -> MemoryRounds | None:
    """The same requests, 0 to at most `most`, again and again. The first round does not count: it touches what was
    never touched, and decides how many requests there is time for. None where memory is not told."""
    await gauge.prepare()
    if await gauge.read() is None:
        return None
    now = time.perf_counter()
    first = await closed_loop(send, _CLIENTS, now + (until_s - now) / _ROUNDS, at_most=most)
    per_round = max(_FEWEST, min(most, len(first)))
    sizes: list[int] = []
    first_use: list[int] = []
    asked = answered = 0
    took_s = 0.0
    while time.perf_counter() + took_s < until_s and len(sizes) < _ROUNDS:
        start_s = time.perf_counter()
        answers = await closed_loop(send, _CLIENTS, until_s, at_most=per_round)
        await asyncio.sleep(_SETTLE_S)
        took_s = time.perf_counter() - start_s
        asked, answered = asked + len(answers), answered + sum(answer.error is None for answer in answers)
        found = await gauge.read()
        if found is None or any(answer.is_late for answer in answers):
            break
        sizes.append(found[0])
        first_use += [] if found[1] is None else [found[1]]
    uses = first_use if len(first_use) == len(sizes) else ()
    return MemoryRounds(sizes, per_round, gauge.source, uses, answered / max(1, asked))
