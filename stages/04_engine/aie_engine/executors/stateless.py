"""The plain executor of graphs without memory: encoders, classifiers, image models. One run, no cache, nothing kept.

Sequences of an encoder are packed one after another, as in generation, so a short text beside a long one costs nothing
and changes nothing; images and vectors come as a batch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.stateless_inputs import checked_inputs, checked_starts
from aie_loader import EVALUATORS, Graph

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
        values = checked_inputs(self._graph, inputs)
        starts = checked_starts(self._graph, values, seq_starts)
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

    def _expand(self, name: str) -> npt.NDArray[np.float32]:
        if name not in self._expanded:
            self._expanded[name] = self._graph.weights[name].dequantize()
        return self._expanded[name]
