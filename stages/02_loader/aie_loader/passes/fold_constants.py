"""Compute once, at load, what depends on weights alone: a node whose inputs are all weights becomes a weight.

The result is float32, so folding pays where it is small or saves work at every run (a transposed projection, a scaled
table), not where it would blow up a quantized matrix for a cheap operator; `max_bytes` bounds what it may add.
"""

from dataclasses import replace
from math import prod

import numpy as np

from aie_loader.evaluation import EVALUATORS
from aie_loader.graph import Graph
from aie_loader.passes.dead_nodes import drop_dead_nodes
from aie_loader.shapes import infer_shapes
from aie_tensor import Matrix

__all__ = ["fold_constants"]

_NEEDS_MORE = frozenset({"embedding", "encoder_attention", "pool_tokens", "rope"})  # reads indices or sequence starts


def fold_constants(graph: Graph, *, max_bytes: int = 256 << 20) -> Graph:
    """The same graph with every constant node of at most `max_bytes` as a weight; repeated until nothing changes."""
    weights = dict(graph.weights)
    folded: set[str] = set()
    for node in graph.sorted():  # what a folded node feeds comes later in this order, so one walk folds whole chains
        shape = graph.shapes[node.name]
        is_constant = node.inputs and all(name in weights for name in node.inputs)
        if not is_constant or node.op in _NEEDS_MORE or node.op not in EVALUATORS or node.name in graph.outputs:
            continue
        sizes = [size for size in shape if isinstance(size, int)]
        if len(sizes) != len(shape) or 4 * prod(sizes) > max_bytes:
            continue
        value = EVALUATORS[node.op](node.attrs, [weights[name].dequantize() for name in node.inputs], None)
        if value.dtype != np.float32:
            continue  # indices are no weight
        weights[node.name] = Matrix.from_array(np.ascontiguousarray(value))
        folded.add(node.name)
    if not folded:
        return graph
    nodes = [node for node in graph.nodes if node.name not in folded]
    return infer_shapes(drop_dead_nodes(replace(graph, nodes=nodes, weights=weights)))
