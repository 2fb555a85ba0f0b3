"""A graph in the language of Graphviz, for whoever has it: `aie load MODEL --graph-dot graph.dot`."""

import json

from aie_loader.graph import Graph
from aie_loader.rendering.elements import drawing

__all__ = ["render_dot"]


def render_dot(graph: Graph, prefix: str = "") -> str:
    """A `digraph`; with `prefix` only the nodes whose names start so, and what they read."""
    picture = drawing(graph, prefix)
    lines = [
        "digraph model {",
        "  rankdir=TB;",
        '  node [shape=box, style="rounded,filled", fillcolor="#eef3fa", fontname="Helvetica", fontsize=10];',
    ]
    for box in picture.boxes:
        colour = ', fillcolor="#e6e6e6"' if box.title == "input" else ""
        lines.append(
            f"  {box.id} [label={json.dumps(chr(10).join((box.title, *box.lines)), ensure_ascii=False)}{colour}];"
        )
    lines += [f"  {source} -> {target};" for source, target in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"
