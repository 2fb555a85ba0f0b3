"""Weights in another precision: the one pass that changes what is computed, and by how much is measured, not promised.

Matrices of projections and tables of embeddings are converted; vectors (norms, biases) become float32, which costs
nothing and loses nothing. What no operator of these kinds reads (the filters of a convolution) stays as it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from aie_loader.graph import Graph
from aie_loader.precision import Precision, convert_matrix
from aie_tensor import DType, Matrix

__all__ = ["convert_weight", "convert_weights", "precisions"]

_PROJECTIONS = frozenset({"linear", "linear_concat", "linear_add", "swiglu"})


def precisions(graph: Graph, precision: Precision) -> dict[str, Precision]:
    """What becomes of each matrix: name → precision. Embedding tables and the output head take `precision.of_ends`.

    The head is the projection that runs on the rows whose logits are wanted.
    """
    chosen: dict[str, Precision] = {}
    for node in graph.nodes:
        is_end = node.op == "embedding" or graph.shapes[node.name][:1] == ("R",)
        if node.op != "embedding" and node.op not in _PROJECTIONS:
            continue
        for name in node.inputs:
            if name in graph.weights and len(graph.weights[name].shape) == 2 and (is_end or name not in chosen):
                chosen[name] = precision.of_ends if is_end else precision
    return chosen


def convert_weights(
    graph: Graph,
    precision: Precision,
    *,
    note: Callable[[str], None] = lambda line: None,
    done: Callable[[Matrix], None] = lambda matrix: None,
) -> Graph:
    """The same graph with its weights in `precision`, one tensor at a time.

    note: takes a line for each matrix that had to stay in F16, because its rows do not fill blocks. done: takes each
    original that is no longer needed, so that the pages of its file can be given back.
    """
    chosen = precisions(graph, precision)
    weights: dict[str, Matrix] = {}
    for name, matrix in graph.weights.items():
        weights[name] = convert_weight(name, matrix, chosen, note)
        if weights[name] is not matrix:
            done(matrix)
    return replace(graph, weights=weights)


def convert_weight(
    name: str, matrix: Matrix, chosen: Mapping[str, Precision], note: Callable[[str], None] = lambda line: None
) -> Matrix:
    """One weight as `precisions` has chosen."""
    if len(matrix.shape) == 1:
        return matrix if matrix.dtype is DType.F32 else Matrix.from_array(matrix.dequantize())
    if name not in chosen:
        return matrix
    converted = convert_matrix(matrix, chosen[name])
    if converted.dtype is not chosen[name].dtype:
        note(
            f"{name}: rows of {matrix.shape[-1]} do not fill blocks of {chosen[name].dtype.block_size}, "
            f"so it is {converted.dtype.name}"
        )
    return converted
