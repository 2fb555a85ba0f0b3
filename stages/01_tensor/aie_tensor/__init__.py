"""Stage 1: bytes into arrays and operators. It knows nothing of models and requests, and imports no other stage.

Layers, lowest first; each imports only those above it in this list:

    stacks.py     call stacks, taken cheaply
    errors.py     the tree of errors
    dtypes.py     element types and block layouts
    decoding.py   any of them into float32, with small_floats.py and k_blocks.py
    quant.py      Matrix: weights as they lie in the file
    ops.py        reference operators in NumPy
    paths.py      the cache folder
    program.py    how a program ends: exit code and one sentence
    memory/       naive pool, ledger, pool with reference counts
    tensor.py     Tensor: shape and type on a pool's block
    native/       C kernels, compiled at first use

Importing this package compiles nothing. What the letters of shapes ([T, C], [L, P, G, A, D]) mean is the same in all
stages: the table of axes is in ARCHITECTURE.md, and each numeric file repeats those that it uses.
"""

from aie_tensor import native, ops
from aie_tensor.dtypes import DType
from aie_tensor.errors import (
    AieError,
    DoubleFreeError,
    EnvironmentLacksError,
    ForeignFreeError,
    InvalidInputError,
    MemoryMisuseError,
    NativeUnavailableError,
    OutOfMemoryError,
    UseAfterFreeError,
)
from aie_tensor.memory import (
    Allocation,
    LeakGroup,
    Ledger,
    LedgerEntry,
    Mark,
    MemoryPool,
    NaivePool,
    PoolStats,
    RefEvent,
    RefHistory,
)
from aie_tensor.paths import cache_dir
from aie_tensor.program import run_program
from aie_tensor.quant import Matrix, quantize
from aie_tensor.stacks import Frame
from aie_tensor.tensor import Tensor

__all__ = [
    "AieError",
    "Allocation",
    "DType",
    "DoubleFreeError",
    "EnvironmentLacksError",
    "ForeignFreeError",
    "Frame",
    "InvalidInputError",
    "LeakGroup",
    "Ledger",
    "LedgerEntry",
    "Mark",
    "Matrix",
    "MemoryMisuseError",
    "MemoryPool",
    "NaivePool",
    "NativeUnavailableError",
    "OutOfMemoryError",
    "PoolStats",
    "RefEvent",
    "RefHistory",
    "Tensor",
    "UseAfterFreeError",
    "cache_dir",
    "native",
    "ops",
    "quantize",
    "run_program",
]
