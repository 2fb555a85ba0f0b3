"""The plain executor of graphs without memory: encoders, classifiers, image models. One run, no cache, nothing kept.

Sequences of an encoder are packed one after another, as in generation, so a short text beside a long one costs nothing
and changes nothing; images and vectors come as a batch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_engine.errors import UnsupportedOpError
from aie_loader import EVALUATORS, Graph
from aie_tensor import InvalidInputError

__all__ = ["StatelessExecutor"]

_KEPT_PACKED = "embedding"  # only rows of its table are needed


class StatelessExecutor:
    """Runs `graph` in NumPy. Weights are expanded to float32 on first use and kept.

    UnsupportedOpError for a graph that needs a cache: those are for `NumpyExecutor`.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = graph.sorted()
        self._expanded: dict[str, npt.NDArray[np.float32]] = {}
        for node in self._nodes:
            if node.op not in EVALUATORS:
                raise UnsupportedOpError(node.name, node.op, "numpy")

    def run(self, inputs: Mapping[str, Any], seq_starts: npt.ArrayLike | None = None) -> dict[str, Any]:
        """The graph's outputs by name. seq_starts [S + 1]: where each packed sequence begins, and the end.

        Without `seq_starts` packed inputs are one sequence. InvalidInputError for an input that is missing, unknown or
        of a shape that the graph cannot take.
        """
        values = self._checked(inputs)
        starts = self._starts(values, seq_starts)
        weights = self._graph.weights
        for node in self._nodes:
            arguments = [
                (weights[name] if node.op == _KEPT_PACKED else self._expand(name)) if name in weights else values[name]
                for name in node.inputs
            ]
            values[node.name] = EVALUATORS[node.op](node.attrs, arguments, starts)
        return {name: values[name] for name in self._graph.outputs}

    def close(self) -> None:
        """Forget the expanded weights."""
        self._expanded.clear()

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self._graph.inputs
        if set(inputs) != set(wanted):
            raise InvalidInputError(f"the graph takes {', '.join(wanted)}; given {', '.join(inputs) or 'nothing'}")
        values: dict[str, Any] = {}
        bound: dict[str, int] = {}
        for name in wanted:
            array = np.asarray(inputs[name])
            shape = self._graph.shapes[name]
            fits = array.ndim == len(shape) and all(
                size == (bound.setdefault(want, size) if isinstance(want, str) else want)
                for size, want in zip(array.shape, shape, strict=True)
            )
            if not fits:
                raise InvalidInputError(f"{name} must be {list(shape)}, not {list(array.shape)}", param=name)
            is_text = shape[0] == "T"
            if is_text and array.dtype.kind not in "iu":
                raise InvalidInputError(f"{name} holds indices, not {array.dtype}", param=name)
            values[name] = array if is_text else array.astype(np.float32, copy=False)
        return values

    def _starts(self, values: Mapping[str, Any], given: npt.ArrayLike | None) -> npt.NDArray[np.int32] | None:
        packed = [len(values[name]) for name in self._graph.inputs if self._graph.shapes[name][:1] == ("T",)]
        if not packed:
            return None
        starts = np.asarray([0, packed[0]] if given is None else given, dtype=np.int32)
        if starts.ndim != 1 or starts[0] != 0 or starts[-1] != packed[0] or (np.diff(starts) < 1).any():
            raise InvalidInputError(
                f"seq_starts must rise from 0 to the {packed[0]} tokens, without empty sequences", param="seq_starts"
            )
        return starts

    def _expand(self, name: str) -> npt.NDArray[np.float32]:
        if name not in self._expanded:
            self._expanded[name] = self._graph.weights[name].dequantize()
        return self._expanded[name]
