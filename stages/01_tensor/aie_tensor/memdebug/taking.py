"""Taking a snapshot: the pools' blocks, and what the ledger says of them grouped by the line that asked."""

import os
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from aie_tensor.memdebug.snapshot import SNAPSHOT_VERSION, HeldGroup, MemorySnapshot
from aie_tensor.memory.ledger import Ledger, LedgerEntry
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.stacks import Frame

__all__ = ["AGE_LIMITS", "take_snapshot"]

# Upper ends of the age histogram. Requests live for seconds, caches for minutes, weights for as long as the process.
AGE_LIMITS: tuple[tuple[float, str], ...] = (
    (1, "< 1 s"),
    (10, "< 10 s"),
    (60, "< 1 min"),
    (600, "< 10 min"),
    (3600, "< 1 h"),
    (float("inf"), ">= 1 h"),
)
MAX_REQUESTS_NAMED = 3

_Key = tuple[str, str, str, str, tuple[Frame, ...]]


def take_snapshot(
    pools: Sequence[MemoryPool],
    ledger: Ledger,
    *,
    process: str,
    num_requests: int | None = None,
    rss_bytes: int | None = None,
    device_bytes: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.time,
) -> MemorySnapshot:
    """What `pools` hold now, and for whom. `num_requests` where another than the ledger counts them; `rss_bytes` where
    the memory is another process's; `device_bytes` where the pools' upstreams cannot tell what it uses of each device.

    Each pool is consistent in itself; the ledger is read a moment later, so that under traffic a block may be seen in
    one of the two only.
    """
    states = tuple(pool.state() for pool in pools)
    held = ledger.outstanding()
    return MemorySnapshot(
        version=SNAPSHOT_VERSION,
        taken_at=clock(),
        process=process,
        pid=os.getpid(),
        num_requests=ledger.num_requests if num_requests is None else num_requests,
        sample_every=ledger.sample_every if ledger.enabled else 0,
        pools=states,
        groups=_grouped(held),
        ages=_ages(held),
        rss_bytes=psutil.Process().memory_info().rss if rss_bytes is None else rss_bytes,
        num_lost=ledger.num_lost,
        device_bytes=tuple(sorted((_device_bytes(pools) if device_bytes is None else device_bytes).items())),
    )


def _device_bytes(pools: Sequence[MemoryPool]) -> dict[str, int]:
    """What the driver says that this process uses of each device that a pool is on. The host's figure is RSS."""
    used = {pool.device: pool.upstream.process_bytes() for pool in pools if pool.device != "cpu"}
    return {device: nbytes for device, nbytes in used.items() if nbytes is not None}


def _grouped(held: Sequence[LedgerEntry]) -> tuple[HeldGroup, ...]:
    groups: dict[_Key, list[LedgerEntry]] = {}
    for entry in held:
        owner = entry.owner
        groups.setdefault((owner.what, owner.model, owner.worker, owner.stage, entry.stack), []).append(entry)
    made = [_group(key, entries) for key, entries in groups.items()]
    return tuple(sorted(made, key=lambda group: (-group.nbytes, group.what, group.stack)))


def _group(key: _Key, entries: Sequence[LedgerEntry]) -> HeldGroup:
    what, model, worker, stage, stack = key
    requests = dict.fromkeys(entry.owner.request_id for entry in entries if entry.owner.request_id)
    return HeldGroup(
        what=_text(what),
        model=_text(model),
        worker=_text(worker),
        stage=_text(stage),
        stack=tuple(_text(str(frame)) for frame in stack),
        count=len(entries),
        nbytes=sum(entry.nbytes for entry in entries),
        block_bytes=sum(entry.block_bytes for entry in entries),
        oldest_s=max(entry.age_s for entry in entries),
        requests=tuple(_text(request) for request in list(requests)[:MAX_REQUESTS_NAMED]),
    )


def _ages(held: Sequence[LedgerEntry]) -> tuple[tuple[str, int, int], ...]:
    """The histogram, empty bins too."""
    counts = dict.fromkeys((label for _, label in AGE_LIMITS), (0, 0))
    for entry in held:
        label = next(label for limit, label in AGE_LIMITS if entry.age_s < limit)
        count, nbytes = counts[label]
        counts[label] = (count + 1, nbytes + entry.nbytes)
    return tuple((label, count, nbytes) for label, (count, nbytes) in counts.items())


def _text(text: str) -> str:
    """Text that can be written as UTF-8: a file name may hold bytes that are none."""
    return text.encode("utf-8", "replace").decode("utf-8")
