"""What every fusion pass needs: who makes a value, who reads it, and how to put new nodes in the place of old ones.

A pass never changes a graph; it returns a new one. A fused node takes the name of the last node that it replaces, so
that whoever reads the value needs no change.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from aie_loader.graph import Graph, Node
from aie_loader.shapes import infer_shapes

__all__ = ["Matcher", "rewrite"]


class Matcher:
    """Looks at one graph from its consumers' side."""

    def __init__(self, graph: Graph) -> None:
        self._makers = {node.name: node for node in graph.nodes}
        self._num_readers = {name: len(readers) for name, readers in graph.consumers().items()}
        self._outputs = set(graph.outputs)

    def private(self, value: str, op: str) -> Node | None:
        """The node that makes `value`, if it is an `op` and its one reader is the one who asks: then it may vanish."""
        node = self._makers.get(value)
        if node is None or node.op != op or self._num_readers.get(value) != 1 or value in self._outputs:
            return None
        return node


def rewrite(graph: Graph, instead: Mapping[str, Sequence[Node]], gone: Collection[str]) -> Graph:
    """The graph with each node in `instead` replaced by others, and without the nodes in `gone`; shapes anew."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in instead:
            nodes += instead[node.name]
        elif node.name not in gone:
            nodes.append(node)
    return infer_shapes(replace(graph, nodes=nodes))
