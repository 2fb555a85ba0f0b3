"""A graph written by hand, for a model that no file describes.

    g = GraphBuilder(weights)
    x = g.input("pixels", ("B", 784))
    x = g.op("linear", x, "fc1.weight", "fc1.bias")
    x = g.op("relu", x)
    x = g.op("linear", x, "fc2.weight", "fc2.bias")
    graph = g.build(x)

`build_graph` writes such a program itself where the weights alone say it: a stack of convolutions and linear layers.
"""

import re
from collections.abc import Mapping
from math import prod

from aie_loader.errors import DuplicateNodeError, GraphShapeError
from aie_loader.graph import Graph, Node, Shape
from aie_loader.shapes import infer_shapes
from aie_tensor import InvalidInputError, Matrix

__all__ = ["GraphBuilder", "build_graph"]


class GraphBuilder:
    """Collects nodes; `build` checks them all. Weights that no node reads are left out of the graph."""

    def __init__(self, weights: Mapping[str, Matrix]) -> None:
        self._weights = weights
        self._inputs: dict[str, Shape] = {}
        self._nodes: list[Node] = []

    def input(self, name: str, shape: Shape) -> str:
        """Declares an input; a leading "B" stands for any number of items, "T" for packed tokens. Returns `name`."""
        if name in self._inputs:
            raise DuplicateNodeError(f"the graph has two inputs {name!r}")
        self._inputs[name] = shape
        return name

    def op(self, op: str, *inputs: str, name: str | None = None, **attrs: object) -> str:
        """Adds an operator over values and weights by name, and returns the name of its result."""
        unnamed = next((value for value in inputs if not isinstance(value, str)), None)
        if unnamed is not None:
            raise InvalidInputError(f"{op} takes the names of values, each by itself, not {unnamed!r:.60}")
        name = name or f"{op}_{len(self._nodes)}"
        self._nodes.append(Node(name, op, inputs, attrs))
        return name

    def build(self, *outputs: str) -> Graph:
        """The graph, with its shapes. GraphError for names that nothing produces, cycles, shapes that do not fit."""
        if not outputs:
            raise InvalidInputError("a graph needs at least one output: give build() the name of a result")
        read = {name for node in self._nodes for name in node.inputs}
        weights = {name: matrix for name, matrix in self._weights.items() if name in read}
        return infer_shapes(Graph(tuple(self._inputs), self._nodes, outputs, weights), self._inputs)


def build_graph(weights: Mapping[str, Matrix], input_shape: tuple[int, ...], *, activation: str = "relu") -> Graph:
    """A sequential network from weights alone: layers in the order of their names (numbers by value), `activation`
    between them, an image flattened before the first linear layer.

    input_shape: of one item, such as (784,) or (1, 28, 28). A weight `x.weight` may have a bias `x.bias`. 2-D weights
    are linear layers [N, K], 4-D ones convolutions [O, C, h, w] of stride 1 without padding. GraphShapeError where the
    layers do not fit on each other (pooling, strides and branches are not in the weights: write those by hand), and
    InvalidInputError for weights of another kind.
    """
    g = GraphBuilder(weights)
    layers = sorted((name for name in weights if name.endswith("weight")), key=_natural)
    if not layers:
        raise InvalidInputError("there is no tensor whose name ends in 'weight' to make a layer of")
    unused = set(weights) - {name for layer in layers for name in (layer, _bias_of(layer))}
    if unused:
        raise InvalidInputError(f"{', '.join(sorted(unused)[:4])} belong to no layer of a sequential network")
    x, shape = g.input("x", ("B", *input_shape)), tuple(input_shape)
    for number, layer in enumerate(layers):
        rank = len(weights[layer].shape)
        if rank not in (2, 4):
            raise InvalidInputError(f"{layer} has {rank} axes; a linear layer has 2 and a convolution 4")
        if number:
            x = g.op(activation, x)
        if rank == 2 and len(shape) > 1:
            x, shape = g.op("flatten", x), (prod(shape),)
        bias = [_bias_of(layer)] if _bias_of(layer) in weights else []
        x = g.op(
            "linear" if rank == 2 else "conv2d", x, layer, *bias, name=layer.removesuffix("weight").rstrip(".") or x
        )
        shape = _after(layer, weights[layer].shape, shape)
    return g.build(x)


def _after(layer: str, weight: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(weight) == 2:
        return weight[:1]
    if len(shape) != 3:
        raise GraphShapeError(
            f"{layer} is a convolution, but what comes to it has the shape {list(shape)}, not [C, H, W]"
        )
    return (weight[0], shape[1] - weight[2] + 1, shape[2] - weight[3] + 1)


def _bias_of(layer: str) -> str:
    return layer.removesuffix("weight") + "bias"


def _natural(name: str) -> list[tuple[int, str]]:
    """`layer10` after `layer9`."""
    parts = re.split(r"([0-9]+)", name)  # texts and runs of digits in turn; a longer run without its zeros is larger
    return [(len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (-1, part) for index, part in enumerate(parts)]
