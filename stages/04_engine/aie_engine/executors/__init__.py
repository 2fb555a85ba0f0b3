"""Executors: one graph, several ways to run it.

protocol.py          what every executor promises
numpy_executor.py    the plain one: reads like the formulas
liveness.py          which activations may share memory
mapped.py            giving back the file's pages once weights are packed
lowering.py          the fused graph as entries of a native plan
native_executor.py   the fast one
"""

from aie_engine.executors.liveness import Lifetime, MemoryPlan, lifetimes, plan_memory
from aie_engine.executors.native_executor import NativeExecutor
from aie_engine.executors.numpy_executor import NumpyExecutor
from aie_engine.executors.protocol import Executor, KernelKind

__all__ = [
    "Executor",
    "KernelKind",
    "Lifetime",
    "MemoryPlan",
    "NativeExecutor",
    "NumpyExecutor",
    "lifetimes",
    "plan_memory",
]
