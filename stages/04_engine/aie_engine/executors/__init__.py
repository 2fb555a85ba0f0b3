"""Executors: one graph, several ways to run it."""

from aie_engine.executors.liveness import Lifetime, MemoryPlan, lifetimes, plan_memory
from aie_engine.executors.numpy_executor import NumpyExecutor
from aie_engine.executors.protocol import Executor, KernelKind

__all__ = [
    "Executor",
    "KernelKind",
    "Lifetime",
    "MemoryPlan",
    "NumpyExecutor",
    "lifetimes",
    "plan_memory",
]
