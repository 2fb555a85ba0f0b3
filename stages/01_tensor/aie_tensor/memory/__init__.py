"""Memory: the naive pool to read first, the pool with size classes, streams and reference counts, the leak ledger.

The pool, from the outside in:

    pool.py        the interface; counts what is live
    allocation.py  a counted handle, and arrays on it
    slab.py        who has which block of the KV cache       adopted.py    memory of others, listed
    ladder.py      what is tried when memory runs out        oom.py        and what is said when that was in vain
    trimming.py    what goes back, when                      filling.py    zero and poison
    mending.py     the books made right after an interrupt
    store.py       blocks that nobody holds
    freelists.py   … free, per stream and class              pending.py    … waiting for streams
    segments.py    how reservations are cut into blocks      classes.py    in which sizes
    upstream.py    where memory comes from: host.py, cuda/   streams.py    order of work, simulated.py for tests
    state.py       all of it as data, made by inspecting.py  watching.py   pools of programs that know nothing of it
"""

from aie_tensor.memory.adopted import Adopted
from aie_tensor.memory.allocation import Allocation
from aie_tensor.memory.events import EventKind, MemoryEvent
from aie_tensor.memory.history import RefEvent, RefHistory
from aie_tensor.memory.host import HostUpstream
from aie_tensor.memory.ledger import LeakGroup, Ledger, LedgerEntry, Mark
from aie_tensor.memory.naive import NaivePool
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.memory.ring import EventRing
from aie_tensor.memory.ring_reader import RingContents, RingEvent, format_events
from aie_tensor.memory.simulated import SimulatedStream
from aie_tensor.memory.slab import BlockSlab
from aie_tensor.memory.state import BlockState, ClassState, PoolState, PoolStats, SegmentState, SlabState
from aie_tensor.memory.streams import Event, Stream
from aie_tensor.memory.trimming import TrimPolicy
from aie_tensor.memory.upstream import Region, Upstream
from aie_tensor.memory.watching import watch_pools

__all__ = [
    "Adopted",
    "Allocation",
    "BlockSlab",
    "BlockState",
    "ClassState",
    "Event",
    "EventKind",
    "EventRing",
    "HostUpstream",
    "LeakGroup",
    "Ledger",
    "LedgerEntry",
    "Mark",
    "MemoryEvent",
    "MemoryPool",
    "NaivePool",
    "Owner",
    "PoolState",
    "PoolStats",
    "RefEvent",
    "RefHistory",
    "Region",
    "RingContents",
    "RingEvent",
    "SegmentState",
    "SimulatedStream",
    "SlabState",
    "Stream",
    "TrimPolicy",
    "Upstream",
    "format_events",
    "watch_pools",
]
