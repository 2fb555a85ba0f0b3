"""Weights in another precision: the one pass that changes what is computed, and by how much is measured, not promised.

Matrices of projections and tables of embeddings are converted; vectors (norms, biases) become float32, which costs
little and loses nothing. What no operator of these kinds reads (the filters of a convolution) stays as it is.

`WeightConverter` does it weight by weight, for whoever packs or writes each one and then forgets it;
`convert_weights` does all at once.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from aie_loader.graph import Graph
from aie_loader.precision import Precision, convert_matrix, stored_dtype
from aie_tensor import DType, Matrix

__all__ = ["WeightConverter", "convert_weights"]

_PROJECTIONS = frozenset({"linear", "linear_concat", "linear_add", "swiglu"})


class WeightConverter:
    """Decides, from how a graph uses its weights, what each becomes. The output head is the projection that runs on the
    rows whose logits are wanted; it and the embedding tables take `precision.of_ends`.

    note: takes a line for each matrix that has to be F16, because its rows do not fill blocks.
    """

    def __init__(self, graph: Graph, precision: Precision, *, note: Callable[[str], None] = lambda line: None) -> None:
        self._chosen: dict[str, Precision] = {}
        for node in graph.nodes:
            is_end = node.op == "embedding" or graph.shapes[node.name][:1] == ("R",)
            if node.op != "embedding" and node.op not in _PROJECTIONS:
                continue
            for name in node.inputs:
                if (
                    name in graph.weights
                    and len(graph.weights[name].shape) == 2
                    and (is_end or name not in self._chosen)
                ):
                    self._chosen[name] = precision.of_ends if is_end else precision
        self._graph = graph
        for name, matrix in graph.weights.items():
            if name in self._chosen and self.dtype(name, matrix) is not self._chosen[name].dtype:
                note(f"{name} is in fp16: its rows of {matrix.shape[-1]} do not fill blocks of 32.")

    @property
    def nbytes(self) -> int:
        """Bytes of all weights once they are converted."""
        return sum(self.dtype(name, matrix).nbytes(prod(matrix.shape)) for name, matrix in self._graph.weights.items())

    def dtype(self, name: str, matrix: Matrix) -> DType:
        """The type that the weight `name` will have."""
        if len(matrix.shape) == 1:
            return DType.F32
        return stored_dtype(matrix, self._chosen[name]) if name in self._chosen else matrix.dtype

    def convert(self, name: str, matrix: Matrix) -> Matrix:
        """The weight `name` as it is to be; itself where it is so already."""
        if len(matrix.shape) == 1:
            return matrix if matrix.dtype is DType.F32 else Matrix.from_array(matrix.dequantize())
        return convert_matrix(matrix, self._chosen[name]) if name in self._chosen else matrix


def convert_weights(graph: Graph, precision: Precision, *, note: Callable[[str], None] = lambda line: None) -> Graph:
    """The same graph with its weights in `precision`. `note` as for `WeightConverter`."""
    converter = WeightConverter(graph, precision, note=note)
    return replace(graph, weights={name: converter.convert(name, matrix) for name, matrix in graph.weights.items()})
