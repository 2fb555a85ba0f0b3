"""Executors: one graph, several ways to run it.

protocol.py          what every executor promises
numpy_executor.py    the plain one: reads like the formulas
stateless_inputs.py  what both executors without a cache check before they run
stateless.py         the plain one for graphs without a cache
mapped.py            giving back the file's pages once weights are packed
lowering_dense.py    operators on images and vectors as entries of a native plan
lowering.py          those on text, and all of a graph
native_executor.py   the fast one
native_stateless.py  the fast one for graphs without a cache
choosing.py          which of the two runs a graph without a cache
"""

from aie_engine.executors.choosing import make_stateless_executor
from aie_engine.executors.native_executor import NativeExecutor
from aie_engine.executors.native_stateless import NativeStatelessExecutor
from aie_engine.executors.numpy_executor import NumpyExecutor
from aie_engine.executors.protocol import Executor, KernelKind
from aie_engine.executors.stateless import StatelessExecutor

__all__ = [
    "Executor",
    "KernelKind",
    "NativeExecutor",
    "NativeStatelessExecutor",
    "NumpyExecutor",
    "StatelessExecutor",
    "make_stateless_executor",
]
