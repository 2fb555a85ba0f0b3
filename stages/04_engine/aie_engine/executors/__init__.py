"""Executors: one graph, several ways to run it.

protocol.py          what every executor promises
numpy_executor.py    the plain one: reads like the formulas
stateless.py         the plain one for graphs without a cache
mapped.py            giving back the file's pages once weights are packed
lowering.py          the fused graph as entries of a native plan
native_executor.py   the fast one
"""

from aie_engine.executors.native_executor import NativeExecutor
from aie_engine.executors.numpy_executor import NumpyExecutor
from aie_engine.executors.protocol import Executor, KernelKind
from aie_engine.executors.stateless import StatelessExecutor

__all__ = [
    "Executor",
    "KernelKind",
    "NativeExecutor",
    "NumpyExecutor",
    "StatelessExecutor",
]
