"""Stage 1: bytes into arrays and operators. It knows nothing of models and requests, and imports no other stage.

Layers, lowest first; each imports only those above it in this list:

    stacks.py     call stacks, taken cheaply
    errors.py     the tree of errors
    dtypes.py     element types and block layouts
    decoding.py   any of them into float32, with small_floats.py and k_blocks.py
    quant.py      Matrix: weights as they lie in the file
    ops/          reference operators in NumPy
    paths.py      the cache folder
    program.py    how a program ends: exit code and one sentence
    memory/       naive pool, ledger, pool with streams and reference counts; memory/cuda/: the same on a GPU
    layout.py     shape, strides and offset of a view
    tensor.py     Tensor: shape and type on a pool's block
    native/       C kernels, compiled at first use
    memdebug/     looking into memory: snapshots, growth, exports, replay, who holds what, the drills

Importing this package compiles nothing. What the letters of shapes ([T, C], [P, L, G, A, D]) mean is the same in all
stages: the table of axes is in ARCHITECTURE.md, and each numeric file repeats those that it uses.
"""

from aie_tensor import native, ops
from aie_tensor.dtypes import DType
from aie_tensor.errors import (
    AieError,
    CudaError,
    DoubleFreeError,
    EnvironmentLacksError,
    ForeignFreeError,
    HazardError,
    InvalidInputError,
    MemoryMisuseError,
    NativeUnavailableError,
    OutOfMemoryError,
    UseAfterFreeError,
    WriteAfterFreeError,
)
from aie_tensor.memory import (
    Adopted,
    Allocation,
    BlockSlab,
    BlockState,
    ClassState,
    Event,
    EventKind,
    EventRing,
    HostUpstream,
    LeakGroup,
    Ledger,
    LedgerEntry,
    Mark,
    MemoryEvent,
    MemoryPool,
    NaivePool,
    Owner,
    PoolState,
    PoolStats,
    RefEvent,
    RefHistory,
    Region,
    RingContents,
    RingEvent,
    SegmentState,
    SimulatedStream,
    SlabState,
    Stream,
    TrimPolicy,
    Upstream,
    format_events,
    watch_pools,
)
from aie_tensor.paths import cache_dir
from aie_tensor.program import run_program
from aie_tensor.quant import Matrix, quantize
from aie_tensor.stacks import Frame, skip_frames_of
from aie_tensor.tensor import Tensor

__all__ = [
    "Adopted",
    "AieError",
    "Allocation",
    "BlockSlab",
    "BlockState",
    "ClassState",
    "CudaError",
    "DType",
    "DoubleFreeError",
    "EnvironmentLacksError",
    "Event",
    "EventKind",
    "EventRing",
    "ForeignFreeError",
    "Frame",
    "HazardError",
    "HostUpstream",
    "InvalidInputError",
    "LeakGroup",
    "Ledger",
    "LedgerEntry",
    "Mark",
    "Matrix",
    "MemoryEvent",
    "MemoryMisuseError",
    "MemoryPool",
    "NaivePool",
    "NativeUnavailableError",
    "OutOfMemoryError",
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
    "Tensor",
    "TrimPolicy",
    "Upstream",
    "UseAfterFreeError",
    "WriteAfterFreeError",
    "cache_dir",
    "format_events",
    "native",
    "ops",
    "quantize",
    "run_program",
    "skip_frames_of",
    "watch_pools",
]
