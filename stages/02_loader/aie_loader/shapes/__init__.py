"""Shapes and element types of every value in a graph, found by walking it once in executable order.

A rule per operator says what it takes and what it gives; a graph whose inputs do not fit is refused here, by node and
name, before anything is computed. Sizes known only at run time are letters: T, R, S and B.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from aie_loader.errors import GraphShapeError
from aie_loader.graph import Graph, Shape
from aie_loader.shapes.checking import Rule
from aie_loader.shapes.dense import DENSE_RULES
from aie_loader.shapes.text import TEXT_RULES
from aie_loader.shapes.types import infer_dtypes

__all__ = ["OPERATORS", "infer_dtypes", "infer_shapes"]

_MOST_ELEMENTS = 1 << 32  # of one value, for one item: 16 GB
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
        shapes[name] = _checked_input(name, known[name])
    shapes |= {name: matrix.shape for name, matrix in graph.weights.items()}
    for node in graph.sorted():
        rule = OPERATORS.get(node.op)
        if rule is None:
            raise GraphShapeError(
                f"node {node.name!r} has the unknown operator {node.op!r}; known: {', '.join(sorted(OPERATORS))}"
            )
        if node.op == "embedding" and node.inputs[1:] and node.inputs[1] not in graph.weights:
            raise GraphShapeError(f"node {node.name!r}: the table of an embedding must be a weight")
        shape = rule(node, [shapes[name] for name in node.inputs])
        if prod(size for size in shape if isinstance(size, int)) > _MOST_ELEMENTS:
            raise GraphShapeError(f"node {node.name!r}: its result {list(shape)} has more than 2^32 elements per item")
        shapes[node.name] = shape
    for name in graph.outputs:
        if name in graph.weights:
            raise GraphShapeError(f"the graph's output {name!r} is a weight, which no run changes")
    return replace(graph, shapes=shapes)


def _checked_input(name: str, shape: object) -> Shape:
    if isinstance(shape, tuple) and shape and all(map(_is_size, shape)):
        return shape
    raise GraphShapeError(f"the shape of the input {name!r} must be a tuple such as ('B', 784), not {shape!r:.60}")


def _is_size(size: object) -> bool:
    return (isinstance(size, str) and size.isidentifier()) or (type(size) is int and 0 < size < 1 << 31)
