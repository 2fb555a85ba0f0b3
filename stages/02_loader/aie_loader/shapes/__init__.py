"""Shapes and element types of every value in a graph, found by walking it once in executable order.

A rule per operator says what it takes and what it gives; a graph whose inputs do not fit is refused here, by node and
name, before anything is computed. Sizes known only at run time are letters: T, R, S and B.
"""

from collections.abc import Mapping
from dataclasses import replace

from aie_loader.errors import GraphShapeError
from aie_loader.graph import Graph, Shape
from aie_loader.shapes.checking import Rule
from aie_loader.shapes.dense import DENSE_RULES
from aie_loader.shapes.text import TEXT_RULES
from aie_loader.shapes.types import infer_dtypes

__all__ = ["OPERATORS", "infer_dtypes", "infer_shapes"]

GRAPH_INPUT_SHAPES: Mapping[str, Shape] = {"token_ids": ("T",), "positions": ("T",), "token_types": ("T",)}

OPERATORS: Mapping[str, Rule] = {**TEXT_RULES, **DENSE_RULES}
"""Every operator that a graph may use."""


def infer_shapes(graph: Graph, inputs: Mapping[str, Shape] | None = None) -> Graph:
    """The same graph with `shapes` filled in. GraphShapeError names the first node whose inputs do not fit.

    inputs: shapes of the graph's own inputs, where they are not those of a text model and the graph does not know them
    yet; a leading "B" stands for any number of items.
    """
    known = {**GRAPH_INPUT_SHAPES, **graph.shapes, **(inputs or {})}
    shapes: dict[str, Shape] = {}
    for name in graph.inputs:
        if name not in known:
            raise GraphShapeError(f"the graph's input {name!r} has no shape: give one, such as ('B', 784)")
        shapes[name] = known[name]
    shapes |= {name: matrix.shape for name, matrix in graph.weights.items()}
    for node in graph.sorted():
        rule = OPERATORS.get(node.op)
        if rule is None:
            raise GraphShapeError(
                f"node {node.name!r} has the unknown operator {node.op!r}; known: {', '.join(sorted(OPERATORS))}"
            )
        shapes[node.name] = rule(node, [shapes[name] for name in node.inputs])
    return replace(graph, shapes=shapes)
