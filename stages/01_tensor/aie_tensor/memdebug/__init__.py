"""Tools that look into memory: snapshots, growth, exports, replay, who holds what. Used by `aie memdebug`.

Nothing here runs while a server serves, except to take a snapshot when somebody asks for one.
"""

from aie_tensor.memdebug.drills import DRILLS, Drill, DrillReport, run_clean, run_drill
from aie_tensor.memdebug.exports import collapsed_stacks, memory_viz, perfetto
from aie_tensor.memdebug.growth import Growth, Totals, diff, keeps_growing, totals
from aie_tensor.memdebug.holders import Chain, Cycle, cycles, holders
from aie_tensor.memdebug.log import LOG_VERSION, AllocationLog, LoggedEvent, iter_log, logged, read_log
from aie_tensor.memdebug.policies import POLICIES, PolicyResult, compare_policies, render_policies, replay_log
from aie_tensor.memdebug.recorded import RecordedEvent
from aie_tensor.memdebug.report import render, render_diff, render_growth
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
    "DRILLS",
    "LOG_VERSION",
    "POLICIES",
    "SNAPSHOT_VERSION",
    "AllocationLog",
    "Chain",
    "Cycle",
    "Drill",
    "DrillReport",
    "Growth",
    "HeldGroup",
    "LoggedEvent",
    "MemorySnapshot",
    "PolicyResult",
    "RecordedEvent",
    "Totals",
    "collapsed_stacks",
    "compare_policies",
    "cycles",
    "diff",
    "holders",
    "iter_log",
    "keeps_growing",
    "load_snapshot",
    "logged",
    "memory_viz",
    "perfetto",
    "read_log",
    "render",
    "render_diff",
    "render_growth",
    "render_policies",
    "replay_log",
    "run_clean",
    "run_drill",
    "save_snapshot",
    "snapshot_from_json",
    "take_snapshot",
    "totals",
]
