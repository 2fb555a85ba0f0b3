"""Element types of every value: nearly all are float32, and what is an index must be used as one."""

from collections.abc import Mapping

from aie_loader.errors import GraphShapeError
from aie_loader.graph import Graph
from aie_tensor import DType

__all__ = ["infer_dtypes"]

_INDEX_INPUTS = frozenset({"token_ids", "positions", "token_types"})
_TAKES_INDICES: Mapping[str, int] = {"embedding": 0, "rope": 1, "rope_attention": 1}  # operator → which input


def infer_dtypes(graph: Graph) -> dict[str, DType]:
    """Type of every value but the weights. GraphShapeError where numbers stand for indices or the other way round."""
    types = {name: DType.I32 if name in _INDEX_INPUTS else DType.F32 for name in graph.inputs}
    for node in graph.sorted():
        indices_at = _TAKES_INDICES.get(node.op)
        for place, name in enumerate(node.inputs):
            is_index = name in types and types[name] is not DType.F32
            if is_index != (place == indices_at):
                kind, wanted = ("indices", "numbers") if is_index else ("numbers", "indices")
                raise GraphShapeError(f"node {node.name!r}: {node.op} takes {wanted} there, but {name!r} holds {kind}")
        gives_indices = node.op == "nms" or (node.op == "top_k" and node.attrs.get("want") == "indices")
        types[node.name] = DType.I64 if gives_indices else DType.F32
    return types
