"""The gated feed-forward activation becomes one operator: silu(x·Wg) · (x·Wu) → swiglu(x, Wg, Wu).

What it buys: gate and up are produced side by side and multiplied while they are in registers, so that two [T, F]
activations are never written and read again. Source of the formula: Shazeer 2020, "GLU Variants Improve Transformer".
"""

from collections.abc import Sequence

from aie_loader.graph import Graph, Node
from aie_loader.passes.matching import Matcher, rewrite

__all__ = ["fuse_swiglu"]


def fuse_swiglu(graph: Graph) -> Graph:
    """Fuse every mul(silu(linear(x, Wg)), linear(x, Wu)), in either order of the factors, where there are no biases."""
    matcher = Matcher(graph)
    instead: dict[str, Sequence[Node]] = {}
    gone: set[str] = set()
    for mul in graph.nodes:
        if mul.op != "mul" or len(mul.inputs) != 2:
            continue
        for gated, plain in (mul.inputs, mul.inputs[::-1]):
            silu = matcher.private(gated, "silu")
            gate = matcher.private(silu.inputs[0], "linear") if silu else None
            up = matcher.private(plain, "linear")
            if silu and gate and up and gate.inputs[0] == up.inputs[0] and len(gate.inputs) == len(up.inputs) == 2:
                instead[mul.name] = [Node(mul.name, "swiglu", (*gate.inputs, up.inputs[1]))]
                gone |= {silu.name, gate.name, up.name}
                break
    return rewrite(graph, instead, gone)
