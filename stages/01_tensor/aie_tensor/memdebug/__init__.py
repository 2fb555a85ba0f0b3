"""Tools that look into memory: snapshots, growth, exports, replay, who holds what. Used by `aie memdebug`.

Nothing here runs while a server serves, except to take a snapshot when somebody asks for one.
"""

from aie_tensor.memdebug.growth import Growth, Totals, diff, keeps_growing, totals
from aie_tensor.memdebug.snapshot import (
    SNAPSHOT_VERSION,
    HeldGroup,
    MemorySnapshot,
    load_snapshot,
    save_snapshot,
    snapshot_from_json,
)
from aie_tensor.memdebug.taking import take_snapshot

__all__ = [
    "SNAPSHOT_VERSION",
    "Growth",
    "HeldGroup",
    "MemorySnapshot",
    "Totals",
    "diff",
    "keeps_growing",
    "load_snapshot",
    "save_snapshot",
    "snapshot_from_json",
    "take_snapshot",
    "totals",
]
