"""What the executors of graphs without a cache check before they run: every input there, of its shape and kind."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_loader import Graph
from aie_tensor import InvalidInputError

__all__ = ["checked_inputs", "checked_starts"]


def checked_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by name: indices as given, all else float32.

    InvalidInputError for an input that is missing, unknown, or of a shape that the graph cannot take.
    """
    if set(inputs) != set(graph.inputs):
        raise InvalidInputError(f"the graph takes {', '.join(graph.inputs)}; given {', '.join(inputs) or 'nothing'}")
    values: dict[str, Any] = {}
    bound: dict[str, int] = {}
    for name in graph.inputs:
        array = np.asarray(inputs[name])
        shape = graph.shapes[name]
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


def checked_starts(
    graph: Graph, values: Mapping[str, Any], given: npt.ArrayLike | None
) -> npt.NDArray[np.int32] | None:
    """Where each packed sequence begins, and the end: [S + 1]; None for a graph that takes no text.

    InvalidInputError when the starts do not cut the tokens into sequences of at least one.
    """
    packed = [len(values[name]) for name in graph.inputs if graph.shapes[name][:1] == ("T",)]
    if not packed:
        return None
    starts = np.asarray([0, packed[0]] if given is None else given, dtype=np.int32)
    if starts.ndim != 1 or starts[0] != 0 or starts[-1] != packed[0] or (np.diff(starts) < 1).any():
        raise InvalidInputError(
            f"seq_starts must rise from 0 to the {packed[0]} tokens, without empty sequences", param="seq_starts"
        )
    return starts
