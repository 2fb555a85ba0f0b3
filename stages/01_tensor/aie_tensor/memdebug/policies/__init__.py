"""What another allocator would have made of the same requests: a recorded log, replayed.

    trace.py       the log as plain "take" and "give back"
    policy.py      what an allocator is here, and memory that does not exist
    simple.py      no cache at all, and a cache of exact sizes
    size_classes.py  `MemoryPool` itself, with 1, 2, 4 or 8 classes per doubling
    best_fit.py    one arena, the tightest hole, split and merged
    buddy.py       halves of halves
    comparing.py   the replay, the figures and the table

Read them in this order. The allocators work on numbers for addresses, so that a log of a 141 GB device replays on a
laptop; the times are those of the Python that is here, comparable with each other and with nothing else.
"""

from aie_tensor.memdebug.policies.best_fit import BestFit
from aie_tensor.memdebug.policies.buddy import Buddy
from aie_tensor.memdebug.policies.comparing import (
    POLICIES,
    PolicyResult,
    compare_policies,
    render_policies,
    replay_log,
)
from aie_tensor.memdebug.policies.policy import Policy, Usage
from aie_tensor.memdebug.policies.simple import ExactCache, System
from aie_tensor.memdebug.policies.size_classes import PooledClasses
from aie_tensor.memdebug.policies.trace import Trace, trace_of

__all__ = [
    "POLICIES",
    "BestFit",
    "Buddy",
    "ExactCache",
    "Policy",
    "PolicyResult",
    "PooledClasses",
    "System",
    "Trace",
    "Usage",
    "compare_policies",
    "render_policies",
    "replay_log",
    "trace_of",
]
