"""Which executor runs a graph without a cache: the fast one where it can, the plain one where it must."""

from collections.abc import Callable
from typing import Any

from aie_engine.config import KernelChoice
from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.native_stateless import NativeStatelessExecutor
from aie_engine.executors.stateless import StatelessExecutor
from aie_engine.sizing import available_cores
from aie_loader import Graph, fuse
from aie_tensor import NativeUnavailableError, native

__all__ = ["make_stateless_executor"]


def make_stateless_executor(
    graph: Graph,
    *,
    kernels: KernelChoice = "auto",
    report: Callable[[str], None] | None = None,
    num_threads: int | None = None,
    **limits: Any,
) -> NativeStatelessExecutor | StatelessExecutor:
    """An executor of the fused `graph`; the caller closes it. limits: as `NativeStatelessExecutor` takes them.

    "auto" falls back to NumPy, with one line to `report`, where there is no compiler or where an operator has no native
    kernel. "native" raises `NativeUnavailableError` or `UnsupportedOpError` instead.
    """
    fused = fuse(graph)
    if kernels == "numpy":
        return StatelessExecutor(fused)
    try:
        lib = native.load(report=report)
        return NativeStatelessExecutor(fused, lib, num_threads=num_threads or available_cores(), **limits)
    except (NativeUnavailableError, UnsupportedOpError) as error:
        if kernels == "native":
            raise
        if report is not None:
            report(f"Running on NumPy, many times slower than native kernels. {error}")
        return StatelessExecutor(fused)
