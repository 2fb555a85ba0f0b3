"""The report of a request that could not be served: figures for the person who has to decide what to change.

The message of the error holds the figures in one paragraph. The file (`MemoryPool(oom_report=…)`) holds all of it, and
is complete before the error is raised, since the process may not live to say more.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aie_tensor.errors import OutOfMemoryError
from aie_tensor.memory.inspecting import holders
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.state import PoolStats

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["Tried", "out_of_memory"]

NUM_HOLDERS = 10


class Tried(NamedTuple):
    """A step of the ladder that did not help, with what was there after it."""

    name: str
    reserved_bytes: int
    cached_bytes: int


def out_of_memory(
    pool: "MemoryPool", nbytes: int, block_bytes: int, owner: Owner, tried: Sequence[Tried]
) -> OutOfMemoryError:
    """The error to raise; the report is written when the pool has a file for it."""
    stats = pool.stats()
    top = holders(pool)[:NUM_HOLDERS]
    limit = "no budget: the system refused" if pool.budget_bytes is None else f"budget {pool.budget_bytes:,}"
    summary = (
        f"out of memory: {nbytes:,} bytes for '{owner}' need a block of {block_bytes:,} ({limit}); "
        f"reserved {stats.reserved_bytes:,} = live {stats.live_bytes:,} + cached {stats.cached_bytes:,} + pending "
        f"{stats.pending_bytes:,}; {stats.live_bytes - stats.requested_bytes:,} of the live bytes are rounding. "
        f"Held by: {', '.join(f'{what} {held:,}' for what, _, held in top[:5]) or 'nobody'}"
    )
    if advice := _advice(pool, stats, block_bytes):
        summary += f". {advice[0]}"
    if pool.oom_report is not None:
        summary += f" ({_write(pool.oom_report, _report(pool, stats, summary, block_bytes, top, tried, advice))})"
    return OutOfMemoryError(summary)


def _report(
    pool: "MemoryPool",
    stats: PoolStats,
    summary: str,
    block_bytes: int,
    top: Sequence[tuple[str, int, int]],
    tried: Sequence[Tried],
    advice: Sequence[str],
) -> str:
    steps = [f"  {s.name}: reserved {s.reserved_bytes:,}, cached {s.cached_bytes:,} after it" for s in tried]
    lines = [
        summary,
        "",
        f"Pool '{pool.name}' on {pool.device}, {stats.num_allocations:,} allocations, {stats.num_reuses:,} reuses, "
        f"most ever live {stats.peak_live_bytes:,}, most ever reserved {stats.peak_reserved_bytes:,}, adopted "
        f"{stats.mapped_bytes:,}",
        "",
        "Tried, in this order:",
        *(steps or ["  nothing: the block is larger than the whole budget"]),
        "",
        f"Would fit if defragmented: {'yes' if _fits_defragmented(pool, stats, block_bytes) else 'no'}",
        "",
        f"Largest holders (at most {NUM_HOLDERS}):",
        *(f"  {held:>18,} bytes in {count:,} blocks: {what}" for what, count, held in top),
        *_lines_that_hold(pool),
        "",
        "What may help:",
        *(f"  {line}" for line in advice or ["nothing that this pool could be told; hold less"]),
    ]
    return "\n".join(lines) + "\n"


def _lines_that_hold(pool: "MemoryPool") -> list[str]:
    """What the ledger adds, which may be shared with other pools: where the largest holders asked."""
    groups = pool.ledger.report(None)[:NUM_HOLDERS] if pool.ledger.enabled else []
    if not groups:
        return []
    return [
        "",
        f"Lines that hold most of what the ledger lists (at most {NUM_HOLDERS}):",
        *(
            f"  {group.nbytes:>18,} bytes in {group.count:,} pieces: {group.owner}, asked for at "
            f"{group.stack[0] if group.stack else 'an unknown line'}"
            for group in groups
        ),
    ]


def _fits_defragmented(pool: "MemoryPool", stats: PoolStats, block_bytes: int) -> bool:
    """Free blocks in segments that live blocks pin, put together with what the budget leaves."""
    room = 0 if pool.budget_bytes is None else pool.budget_bytes - stats.reserved_bytes
    return stats.cached_bytes + stats.pending_bytes + room >= block_bytes


def _advice(pool: "MemoryPool", stats: PoolStats, block_bytes: int) -> list[str]:
    """Only what is not so already."""
    lines = []
    if pool.budget_bytes is not None and block_bytes > pool.budget_bytes:
        lines.append(f"No request of this size can succeed: raise budget_bytes to {block_bytes:,} at least")
    if pool.classes.per_doubling < 8 and (stats.live_bytes - stats.requested_bytes) * 8 > stats.live_bytes:
        lines.append(f"Raise classes_per_doubling (now {pool.classes.per_doubling}) to lose less to rounding")
    if _fits_defragmented(pool, stats, block_bytes) and stats.cached_bytes:
        lines.append("Lower segment_bytes, so that a live block pins less of the cache")
    if not pool.ledger.enabled:
        lines.append("Switch the ledger on, Ledger(enabled=True), to see which lines hold the memory")
    return lines


def _write(path: Path, text: str) -> str:
    """Write all of it or nothing; says where it is, or why it is not."""
    if path.exists() and not path.is_file():  # a device such as /dev/null would be replaced
        return f"the report could not be written to {path}: it is no ordinary file"
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        return f"the report could not be written to {path}: {error.strerror or error}"
    return f"report: {path}"
