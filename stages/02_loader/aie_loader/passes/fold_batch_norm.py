"""A batch normalisation behind a convolution or a linear layer becomes part of its weights.

At inference the normalisation is y = x·s + t for each channel, with s = weight/√(variance + eps) and t = bias − mean·s.
So conv(x; W, b)·s + t = conv(x; W·s, b·s + t): one operator less, and no other result but for rounding (Jacob et al.
2018, arXiv:1712.05877, section 3.2).
"""

from dataclasses import replace

import numpy as np

from aie_loader.graph import Graph, Node
from aie_loader.passes.dead_nodes import drop_dead_nodes
from aie_loader.passes.matching import Matcher, rewrite
from aie_tensor import Matrix

__all__ = ["fold_batch_norm"]

_PRODUCTS = ("conv2d", "conv1d", "linear")


def fold_batch_norm(graph: Graph) -> Graph:
    """Every batch_norm whose input is a product that nobody else reads goes into that product's weight and bias."""
    matcher = Matcher(graph)
    weights = dict(graph.weights)
    instead: dict[str, list[Node]] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        product = next(
            (found for op in _PRODUCTS if node.op == "batch_norm" and (found := matcher.private(node.inputs[0], op))),
            None,
        )
        constants = [*node.inputs[1:], *(product.inputs[1:] if product else ())]
        if product is None or not all(name in graph.weights for name in constants):
            continue
        scale, shift = _scale_and_shift(graph, node)
        kernel = graph.weights[product.inputs[1]].dequantize()
        old_bias = graph.weights[product.inputs[2]].dequantize() if len(product.inputs) == 3 else np.float32(0)
        names = f"{node.name}.folded.weight", f"{node.name}.folded.bias"
        weights[names[0]] = Matrix.from_array(kernel * scale.reshape(-1, *[1] * (kernel.ndim - 1)))
        weights[names[1]] = Matrix.from_array(old_bias * scale + shift)
        instead[node.name] = [Node(node.name, product.op, (product.inputs[0], *names), product.attrs)]
        gone.add(product.name)
    return drop_dead_nodes(rewrite(replace(graph, weights=weights), instead, gone)) if instead else graph


def _scale_and_shift(graph: Graph, node: Node) -> tuple[np.ndarray, np.ndarray]:
    """In float64, since variance may be tiny; rounded once."""
    weight, bias, mean, variance = (graph.weights[name].dequantize().astype(np.float64) for name in node.inputs[1:])
    scale = weight / np.sqrt(variance + float(node.attrs["eps"]))  # type: ignore[arg-type]
    return scale.astype(np.float32), (bias - mean * scale).astype(np.float32)
