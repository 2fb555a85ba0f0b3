"""What every drawing of a graph shows: boxes, arrows between them, and which level each box is on."""

from dataclasses import dataclass
from math import prod

from aie_loader.graph import Graph, Node
from aie_loader.rendering.text import dims, visible

__all__ = ["Box", "Drawing", "drawing"]


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or an input of the drawn part."""

    id: str  # n0, n1, …: safe in every language
    title: str  # the operator, or "input"
    lines: tuple[str, ...]  # name; weights; shape of the result
    level: int  # longest way from an input, in arrows


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes in executable order, and arrows as pairs of box ids."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[str, str], ...]


def drawing(graph: Graph, prefix: str = "") -> Drawing:
    """The nodes whose names start with `prefix`, and what they read from outside as inputs. Weights are text in a box:
    as boxes of their own they would be half the picture and say less."""
    boxes: dict[str, Box] = {}
    arrows: list[tuple[str, str]] = []
    for node in graph.sorted():
        if not node.name.startswith(prefix):
            continue
        sources = [name for name in node.inputs if name not in graph.weights]
        for name in sources:
            if name not in boxes:
                boxes[name] = Box(f"n{len(boxes)}", "input", (visible(name), dims(graph.shapes.get(name))), 0)
        level = 1 + max((boxes[name].level for name in sources), default=-1)
        boxes[node.name] = Box(f"n{len(boxes)}", visible(node.op), _lines(graph, node), level)
        arrows += [(boxes[name].id, boxes[node.name].id) for name in sources]
    return Drawing(tuple(boxes.values()), tuple(arrows))


def _lines(graph: Graph, node: Node) -> tuple[str, ...]:
    weights = [graph.weights[name] for name in node.inputs if name in graph.weights]
    held = [
        f"{matrix.dtype.name} {'×'.join(map(str, matrix.shape))}" for matrix in weights if prod(matrix.shape[:-1]) > 1
    ]
    return (visible(node.name), *([" + ".join(held)] if held else []), dims(graph.shapes.get(node.name)))
