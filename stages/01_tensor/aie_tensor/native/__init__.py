"""C kernels for the CPU, compiled at first use; the same results as `aie_tensor.ops`, at the machine's speed.

    build.py     find a compiler, compile once, cache
    structs.py   the C structures, mirrored
    library.py   load(): the functions of the compiled library
    packed.py    PackedMatrix: weights in the order in which the kernels read them
    constants.py Constants: where packed weights, vectors and tables lie
    step.py      StepArrays, and the limits against which they are checked
    appending.py, row_operators.py, attention_operators.py, dense_operators.py: what PlanBuilder can append
    plan.py      PlanBuilder, Plan: a model's operators as one native call
    src/         the C sources, best read in this order:
                 simd.h, vector_math.h, formats.h, pack.c, micro.h, micro.c, matmul.h, gemv.c, gemm.c, int8_pairs.h,
                 int8.c, matmul.c, sums.h, rows.c, elementwise.c, rotary.c, kv.h, kv.c, kv_tiles.c, attention.h,
                 attention.c, causal.c, encoder.c, dense.h, conv.c, windows.c, walks.c, nms.c, pool.h, pool.c, plan.h,
                 plan.c, roofline.c

Activations are float32, unless a matrix was packed for int8 ones; weights keep the bits of their file. A token's result
has the same bits whatever else is in its batch, however its prompt was cut into chunks, and however many threads work:
every sum has one fixed order.
"""

from aie_tensor.errors import NativeUnavailableError
from aie_tensor.native.build import Compiler, find_compilers
from aie_tensor.native.constants import Constants
from aie_tensor.native.dense_operators import Windows
from aie_tensor.native.library import NativeLibrary, load
from aie_tensor.native.packed import PackedMatrix
from aie_tensor.native.plan import Buffer, KVLayout, OpTime, Plan, PlanBuilder
from aie_tensor.native.step import StatelessArrays, StepArrays
from aie_tensor.native.structs import DOT_FORMATS, FORMATS, INDICES, MAX_DIMS

__all__ = [
    "DOT_FORMATS",
    "FORMATS",
    "INDICES",
    "MAX_DIMS",
    "Buffer",
    "Compiler",
    "Constants",
    "KVLayout",
    "NativeLibrary",
    "NativeUnavailableError",
    "OpTime",
    "PackedMatrix",
    "Plan",
    "PlanBuilder",
    "StatelessArrays",
    "StepArrays",
    "Windows",
    "find_compilers",
    "load",
]
