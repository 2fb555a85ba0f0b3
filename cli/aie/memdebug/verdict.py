"""From snapshots to a verdict: what leaks, what only grew once, and whether that fails the run.

Held is not leaked. Two things are a leak: memory that belongs to a request although no request is open, and memory that
grew between each pair of marks after the warm-up (three points; two make no trend). The rest of what grew is shown and
fails only against a limit that the person gave.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aie_tensor.memdebug import diff, keeps_growing, totals

if TYPE_CHECKING:
    from aie_tensor.memdebug import Growth, HeldGroup, MemorySnapshot, Totals

__all__ = ["Marks", "Verdict", "judge", "live_bytes", "slab_blocks"]


@dataclass(frozen=True, slots=True)
class Marks:
    """Snapshots of an engine with no request open."""

    start: "MemorySnapshot"  # before any traffic
    baseline: "MemorySnapshot"  # after the warm-up
    middle: "MemorySnapshot"
    end: "MemorySnapshot"

    def after_warm_up(self) -> "tuple[MemorySnapshot, MemorySnapshot, MemorySnapshot]":
        return self.baseline, self.middle, self.end


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the marks show. Bytes."""

    leaks: "tuple[Growth, ...]"
    grown: "tuple[Growth, ...]"  # more than at the baseline, but no leak by the rules above
    change: "Totals"  # from the baseline to the end
    rss_share: float | None  # growth of resident memory after the warm-up as a part of it; None: size unknown
    over_limit: tuple[str, ...]  # what grew beyond the limit, in words
    unnamed_bytes: int = 0  # leaked by the pools' count, and a ledger that samples has no line for it

    @property
    def failed(self) -> bool:
        return bool(self.leaks or self.over_limit or self.unnamed_bytes)


def judge(marks: Marks, *, limit_bytes: int | None, is_idle: bool = True) -> Verdict:
    """`is_idle`: False where other people's requests may have been open at the marks, so that memory of a request is no
    leak by itself."""
    leaks = {_key(leak.group): leak for leak in keeps_growing(marks.after_warm_up())}
    if is_idle:
        for leak in _of_requests(marks):
            leaks.setdefault(_key(leak.group), leak)
    grown = [
        group
        for group in diff(marks.baseline, marks.end)
        if (group.nbytes > 0 or group.count > 0) and _key(group.group) not in leaks
    ]
    change = totals(marks.baseline, marks.end)
    rss = marks.baseline.rss_bytes
    return Verdict(
        leaks=tuple(sorted(leaks.values(), key=lambda leak: -leak.nbytes)),
        grown=tuple(grown),
        change=change,
        rss_share=change.rss_bytes / rss if rss > 0 else None,
        over_limit=() if limit_bytes is None else tuple(_over(limit_bytes, change, marks.after_warm_up())),
        unnamed_bytes=_unnamed(marks) if is_idle and not leaks else 0,
    )


def _unnamed(marks: Marks) -> int:
    """The pools count every block, the ledger perhaps one in 64: what the one shows, the other may have missed."""
    if marks.end.sample_every <= 1:
        return 0
    held = [live_bytes(mark) for mark in marks.after_warm_up()]
    steady = held[-1] - held[0] if all(a < b for a, b in itertools.pairwise(held)) else 0
    return steady + max(_slab_bytes(marks.end) - _slab_bytes(marks.start), 0)  # only requests hold blocks of slabs


def _of_requests(marks: Marks) -> "list[Growth]":
    """Groups that requests still hold, although none is open; those of the warm-up too."""
    return [change for change in diff(marks.start, marks.end) if change.group.requests and change.count > 0]


def _over(limit_bytes: int, change: "Totals", marks: "Sequence[MemorySnapshot]") -> list[str]:
    from aie.console import format_bytes

    found = []
    if change.live_bytes > limit_bytes:
        found.append(f"live memory of the pools grew by {format_bytes(change.live_bytes)}")
    rises = all(a.rss_bytes < b.rss_bytes for a, b in itertools.pairwise(marks))
    if change.rss_bytes > limit_bytes and rises:
        found.append(f"resident memory (RSS) grew by {format_bytes(change.rss_bytes)}, and in each half of the run")
    return found


def live_bytes(snapshot: "MemorySnapshot") -> int:
    """In blocks that somebody holds, in all pools."""
    return sum(pool.stats.live_bytes for pool in snapshot.pools)


def slab_blocks(snapshot: "MemorySnapshot") -> int:
    """Blocks in use of all slabs (the KV cache): their bytes are live for as long as the slab is."""
    return sum(len(slab.used) for pool in snapshot.pools for slab in pool.slabs)


def _slab_bytes(snapshot: "MemorySnapshot") -> int:
    return sum(len(slab.used) * slab.block_bytes for pool in snapshot.pools for slab in pool.slabs)


def _key(group: "HeldGroup") -> tuple[object, ...]:
    return group.what, group.model, group.worker, group.stage, group.stack
