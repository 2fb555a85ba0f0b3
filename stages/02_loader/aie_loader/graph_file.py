"""A graph in a small JSON file beside its weights: a model of any family without a line of Python.

    {
      "aie_graph": 1,
      "inputs": {"pixels": ["B", 784]},
      "nodes": [
        {"name": "hidden", "op": "linear", "inputs": ["pixels", "fc1.weight", "fc1.bias"]},
        {"name": "active", "op": "relu", "inputs": ["hidden"]},
        {"name": "logits", "op": "linear", "inputs": ["active", "fc2.weight", "fc2.bias"]}
      ],
      "outputs": ["logits"]
    }

A node's other keys are its constants ("stride": [2, 2]). The weights lie in the checkpoint of the same folder, under
the names that the nodes use.
"""

from collections.abc import Mapping
from pathlib import Path

from aie_loader.errors import MalformedHeaderError
from aie_loader.formats import read_json_object
from aie_loader.graph import Graph, Node, Shape
from aie_loader.shapes import infer_shapes
from aie_tensor import Matrix

__all__ = ["GRAPH_FILE", "graph_to_json", "read_graph_file"]

GRAPH_FILE = "graph.json"
_VERSION = 1
_MAX_NODES = 1_000_000
_OWN_KEYS = frozenset({"name", "op", "inputs"})


def read_graph_file(path: Path, weights: Mapping[str, Matrix]) -> Graph:
    """The graph in `path` over `weights` (those that no node reads are left out).

    MalformedHeaderError names the key that is missing or wrong; GraphError what does not fit together.
    """
    document = read_json_object(path)
    if document.get("aie_graph") != _VERSION:
        raise MalformedHeaderError(
            f'{path} is no graph file of version {_VERSION}: it must begin with "aie_graph": {_VERSION}'
        )
    inputs = document.get("inputs")
    if not isinstance(inputs, dict) or not inputs:
        raise MalformedHeaderError(f"{path}: inputs must be an object of names and shapes")
    shapes = {name: _shape(path, name, shape) for name, shape in inputs.items()}
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not 0 < len(nodes) <= _MAX_NODES:
        raise MalformedHeaderError(f"{path}: nodes must be a list of 1 to {_MAX_NODES:,} objects")
    built = [_node(path, number, node) for number, node in enumerate(nodes)]
    outputs = tuple(_names(path, "outputs", document.get("outputs")))
    read = {name for node in built for name in node.inputs}
    used = {name: matrix for name, matrix in weights.items() if name in read}
    return infer_shapes(Graph(tuple(shapes), built, outputs, used), shapes)


def graph_to_json(graph: Graph) -> dict[str, object]:
    """What `read_graph_file` reads; the weights stay where they are."""
    return {
        "aie_graph": _VERSION,
        "inputs": {name: list(graph.shapes[name]) for name in graph.inputs},
        "nodes": [
            {"name": node.name, "op": node.op, "inputs": list(node.inputs), **_plain(node.attrs)}
            for node in graph.sorted()
        ],
        "outputs": list(graph.outputs),
    }


def _plain(attrs: Mapping[str, object]) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in attrs.items()}


def _node(path: Path, number: int, node: object) -> Node:
    where = f"node {number}"
    if not isinstance(node, dict):
        raise MalformedHeaderError(f"{path}: {where} is not an object")
    name, op = node.get("name"), node.get("op")
    if not isinstance(name, str) or not isinstance(op, str):
        raise MalformedHeaderError(f"{path}: {where} needs a name and an op, both texts")
    attrs = {key: _constant(path, name, key, value) for key, value in node.items() if key not in _OWN_KEYS}
    return Node(name, op, tuple(_names(path, f"inputs of {name!r}", node.get("inputs"))), attrs)


def _constant(path: Path, node: str, key: str, value: object) -> object:
    if isinstance(value, list) and all(type(item) in (int, float) for item in value):
        return tuple(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise MalformedHeaderError(f"{path}: {key} of {node!r} must be a number, a text, true, false or a list of numbers")


def _names(path: Path, what: str, value: object) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise MalformedHeaderError(f"{path}: {what} must be a list of names")
    return value


def _shape(path: Path, name: str, shape: object) -> Shape:
    if not isinstance(shape, list) or not shape or not all(_is_size(size) for size in shape):
        raise MalformedHeaderError(f'{path}: the shape of {name!r} must be a list such as ["B", 784], not {shape!r}')
    return tuple(shape)


def _is_size(size: object) -> bool:
    return (isinstance(size, str) and size.isidentifier()) or (type(size) is int and 0 < size < 1 << 31)
