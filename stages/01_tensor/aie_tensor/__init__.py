"""Stage 1: bytes into arrays and operators.

Layers, lowest first; each imports only those above it in this list:

    stacks.py     call stacks, taken cheaply
    errors.py     the tree of errors
    dtypes.py     element types and block layouts
    quant.py      Matrix: weights as they lie in the file
    ops.py        reference operators in NumPy
    paths.py      the cache folder

Importing this package compiles nothing.
"""

from aie_tensor import ops
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
from aie_tensor.paths import cache_dir
from aie_tensor.quant import Matrix, quantize
from aie_tensor.stacks import Frame

__all__ = [
    "AieError",
    "DType",
    "DoubleFreeError",
    "EnvironmentLacksError",
    "ForeignFreeError",
    "Frame",
    "InvalidInputError",
    "Matrix",
    "MemoryMisuseError",
    "NativeUnavailableError",
    "OutOfMemoryError",
    "UseAfterFreeError",
    "cache_dir",
    "ops",
    "quantize",
]
