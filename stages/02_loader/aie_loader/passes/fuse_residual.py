"""A projection that is only added to a residual adds it while it writes: add(r, linear(x, W)) → linear_add(x, W, r).

Only when nothing else reads the projection; otherwise its own value is still needed. The residual is the last input,
after the optional bias.
"""

from collections.abc import Sequence

from aie_loader.graph import Graph, Node
from aie_loader.passes.matching import Matcher, rewrite

__all__ = ["fuse_residual"]


def fuse_residual(graph: Graph) -> Graph:
    """Fuse every add one of whose sides is a projection that nothing else reads."""
    matcher = Matcher(graph)
    instead: dict[str, Sequence[Node]] = {}
    gone: set[str] = set()
    for add in graph.nodes:
        if add.op != "add" or len(add.inputs) != 2:
            continue
        for residual, projected in (add.inputs, add.inputs[::-1]):
            linear = matcher.private(projected, "linear")
            if linear and linear.name not in gone:
                instead[add.name] = [Node(add.name, "linear_add", (*linear.inputs, residual))]
                gone.add(linear.name)
                break
    return rewrite(graph, instead, gone)
