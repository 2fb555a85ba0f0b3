"""What one item of a graph looks like, and which way items become a batch.

texts   packed one after another: token ids, positions and token types [T], and where each text begins
rows    stacked along a first axis B, which every input and every output has
single  neither: one item at a time (boxes of one image, say)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aie_engine.errors import UnsupportedOpError
from aie_engine.predictors.protocol import ArrayInfo
from aie_loader import Graph, Node, Shape

__all__ = ["Kind", "Signature", "signature_of"]

Kind = Literal["texts", "rows", "single"]

_TEXT_INPUTS = ("token_ids", "positions", "token_types")


@dataclass(frozen=True, slots=True)
class Signature:
    """Of one item, and of the batch."""

    kind: Kind
    inputs: tuple[ArrayInfo, ...]
    outputs: tuple[ArrayInfo, ...]
    axes: Mapping[str, str]  # of each input and output: the axis that batches it, T, S or B; "" for none
    max_length: int | None  # of texts: what the table of positions has room for


def signature_of(graph: Graph) -> Signature:
    """`graph` before or after fusing. UnsupportedOpError for packed inputs that are no text."""
    makers = {node.name: node for node in graph.nodes}
    tables = {node.inputs[0]: graph.weights[node.inputs[1]].shape[0] for node in graph.nodes if node.op == "embedding"}
    shapes = {name: graph.shapes[name] for name in (*graph.inputs, *graph.outputs)}
    axes = {name: str(shape[0]) if shape[:1] in (("T",), ("S",), ("B",)) else "" for name, shape in shapes.items()}
    outputs = tuple(
        ArrayInfo(name, _of_item(axes[name], shapes[name]), _dtype(makers.get(name))) for name in graph.outputs
    )
    if "T" not in (axes[name] for name in graph.inputs):
        is_stacked = set(axes.values()) == {"B"}
        dense = tuple(ArrayInfo(name, _of_item(axes[name], shapes[name]), "float32") for name in graph.inputs)
        return Signature("rows" if is_stacked else "single", dense, outputs, axes, None)
    for name in graph.inputs:
        if name not in _TEXT_INPUTS:
            raise UnsupportedOpError(name, "an input beside those of a text", "predictor's")
    words = tuple(
        ArrayInfo(name, (-1,), "int32", tables.get(name), is_optional=name == "token_types")
        for name in graph.inputs
        if name != "positions"
    )
    return Signature("texts", words, outputs, axes, tables.get("positions"))


def _of_item(axis: str, shape: Shape) -> tuple[int, ...]:
    """Without the axis of the batch; what differs from item to item is -1."""
    own = shape[1:] if axis in ("S", "B") else shape
    return tuple(size if isinstance(size, int) else -1 for size in own)


def _dtype(maker: Node | None) -> str:
    """Of a value, by the node that makes it."""
    counts = maker is not None and (maker.op == "nms" or (maker.op == "top_k" and maker.attrs.get("want") == "indices"))
    return "int64" if counts else "float32"
