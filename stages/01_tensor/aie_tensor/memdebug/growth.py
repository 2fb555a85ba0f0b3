"""What grew between snapshots: a leak is not what is held, but what keeps growing while requests come and go.

Between two snapshots much may grow with good reason: a cache that fills, a request in flight. The three-point rule asks
for growth in *each* interval of at least three snapshots, taken after warm-up. Growth is counted per 1,000 requests,
since a leak belongs to a request's path, and a busy minute must not look worse than a calm one.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aie_tensor.errors import InvalidInputError
from aie_tensor.memdebug.snapshot import HeldGroup, MemorySnapshot

__all__ = ["Growth", "Totals", "diff", "keeps_growing", "totals"]

_Key = tuple[str, str, str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Growth:
    """How one group changed; negative where it shrank."""

    group: HeldGroup  # as it is in the later snapshot; all zeros where it is gone
    count: int
    nbytes: int
    block_bytes: int
    bytes_per_1000: float | None  # per 1,000 requests; None where no request ended in between


@dataclass(frozen=True, slots=True)
class Totals:
    """How the whole process changed, whether the ledger saw it or not."""

    num_requests: int  # ended in between
    requested_bytes: int
    live_bytes: int
    reserved_bytes: int
    mapped_bytes: int
    num_slab_blocks: int  # in use
    rss_bytes: int
    held_bytes: int  # what the ledger knows of

    def per_1000(self, nbytes: int) -> float | None:
        """`nbytes` per 1,000 requests; None where no request ended in between."""
        return nbytes * 1000 / self.num_requests if self.num_requests > 0 else None


def diff(before: MemorySnapshot, after: MemorySnapshot) -> list[Growth]:
    """Every group that changed, most growth first, then most shrinkage last."""
    old, new = _by_key(before), _by_key(after)
    num_requests = after.num_requests - before.num_requests
    changes = []
    for key in old.keys() | new.keys():
        was, now = old.get(key) or _emptied(new[key]), new.get(key) or _emptied(old[key])
        if (was.count, was.nbytes) != (now.count, now.nbytes):
            grown = now.nbytes - was.nbytes
            per_1000 = grown * 1000 / num_requests if num_requests > 0 else None
            changes.append(Growth(now, now.count - was.count, grown, now.block_bytes - was.block_bytes, per_1000))
    return sorted(changes, key=lambda change: (-change.nbytes, -change.count, _key(change.group)))


def keeps_growing(snapshots: Sequence[MemorySnapshot]) -> list[Growth]:
    """The groups whose bytes or count grew in each interval and never shrank, with their growth from the first snapshot
    to the last. InvalidInputError for fewer than three snapshots: two points make no trend."""
    if len(snapshots) < 3:
        raise InvalidInputError(f"what keeps growing shows in at least three snapshots, not in {len(snapshots)}.")
    growing: set[_Key] | None = None
    for before, after in itertools.pairwise(snapshots):
        grew = {_key(change.group) for change in diff(before, after) if _grew(change)}
        growing = grew if growing is None else growing & grew
    return [change for change in diff(snapshots[0], snapshots[-1]) if _key(change.group) in (growing or ())]


def totals(before: MemorySnapshot, after: MemorySnapshot) -> Totals:
    """The process's figures, later minus earlier."""
    return Totals(
        num_requests=after.num_requests - before.num_requests,
        requested_bytes=_sum(after, "requested_bytes") - _sum(before, "requested_bytes"),
        live_bytes=_sum(after, "live_bytes") - _sum(before, "live_bytes"),
        reserved_bytes=_sum(after, "reserved_bytes") - _sum(before, "reserved_bytes"),
        mapped_bytes=_sum(after, "mapped_bytes") - _sum(before, "mapped_bytes"),
        num_slab_blocks=_slab_blocks(after) - _slab_blocks(before),
        rss_bytes=after.rss_bytes - before.rss_bytes,
        held_bytes=sum(group.nbytes for group in after.groups) - sum(group.nbytes for group in before.groups),
    )


def _grew(change: Growth) -> bool:
    """Grew in bytes or in number, and shrank in neither."""
    return change.nbytes >= 0 and change.count >= 0  # `diff` leaves out what stayed equal


def _key(group: HeldGroup) -> _Key:
    return group.what, group.model, group.worker, group.stage, group.stack


def _by_key(snapshot: MemorySnapshot) -> dict[_Key, HeldGroup]:
    return {_key(group): group for group in snapshot.groups}


def _emptied(group: HeldGroup) -> HeldGroup:
    """`group` when nothing of it is held."""
    return replace(group, count=0, nbytes=0, block_bytes=0, oldest_s=0.0, requests=())


def _sum(snapshot: MemorySnapshot, name: str) -> int:
    return sum(getattr(pool.stats, name) for pool in snapshot.pools)


def _slab_blocks(snapshot: MemorySnapshot) -> int:
    return sum(len(slab.used) for pool in snapshot.pools for slab in pool.slabs)
