"""A graph as a graph file, to be edited by hand and loaded again."""

import json

from aie_loader.graph import Graph
from aie_loader.graph_file import graph_to_json
from aie_tensor import InvalidInputError

__all__ = ["render_json"]


def render_json(graph: Graph, prefix: str = "") -> str:
    """The graph as `read_graph_file` reads it. A part of a graph is none, so `prefix` must be empty."""
    if prefix:
        raise InvalidInputError("a graph file holds the whole graph: leave out the prefix, or draw it otherwise")
    return json.dumps(graph_to_json(graph), indent=1) + "\n"
