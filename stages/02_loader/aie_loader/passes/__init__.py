"""Passes rewrite a graph into one that computes the same with fewer, larger operators. Each is `Graph -> Graph`.

The unfused graph says what the model is; the fused one is what the C kernels run. The NumPy executor runs either, so
that a pass can be checked: both must give the same. `convert_weights` alone changes numbers, and is never implied.
"""

from aie_loader.graph import Graph
from aie_loader.passes.convert_weights import WeightConverter, convert_weights
from aie_loader.passes.dead_nodes import drop_dead_nodes
from aie_loader.passes.fold_batch_norm import fold_batch_norm
from aie_loader.passes.fold_constants import fold_constants
from aie_loader.passes.fuse_qkv import fuse_qkv
from aie_loader.passes.fuse_residual import fuse_residual
from aie_loader.passes.fuse_swiglu import fuse_swiglu

__all__ = [
    "WeightConverter",
    "convert_weights",
    "drop_dead_nodes",
    "fold_batch_norm",
    "fold_constants",
    "fuse",
    "fuse_qkv",
    "fuse_residual",
    "fuse_swiglu",
]


def fuse(graph: Graph) -> Graph:
    """All folds and fusions. For a Llama layer: 16 operators become 7."""
    folded = fold_batch_norm(fold_constants(drop_dead_nodes(graph)))
    return fuse_residual(fuse_swiglu(fuse_qkv(folded)))
