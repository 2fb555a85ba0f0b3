"""Away with what no output needs: results that nobody reads, and the weights that only they read."""

from dataclasses import replace

from aie_loader.graph import Graph

__all__ = ["drop_dead_nodes"]


def drop_dead_nodes(graph: Graph) -> Graph:
    """One walk backwards through the executable order; a node stays if an output or a staying node reads it."""
    needed = set(graph.outputs)
    for node in reversed(graph.sorted()):
        if node.name in needed:
            needed.update(node.inputs)
    nodes = [node for node in graph.nodes if node.name in needed]
    weights = {name: matrix for name, matrix in graph.weights.items() if name in needed}
    kept = {*graph.inputs, *weights, *(node.name for node in nodes)}
    shapes = {name: shape for name, shape in graph.shapes.items() if name in kept}
    return replace(graph, nodes=nodes, weights=weights, shapes=shapes)
