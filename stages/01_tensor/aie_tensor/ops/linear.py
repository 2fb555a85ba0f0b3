"""Rows of tables and products with weights.

Axes: T tokens, C hidden, K/N input/output width of a linear layer, V vocabulary.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aie_tensor.quant import Matrix

__all__ = ["Floats", "Ints", "embedding", "linear"]

Floats = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]


def embedding(ids: Ints, table: Matrix) -> Floats:
    """Rows `ids` [T] of `table` [V, C] → [T, C]. InvalidInputError for an id outside 0…V−1."""
    return table.rows(ids)


def linear(x: Floats, w: Floats, bias: Floats | None = None) -> Floats:
    """x [T, K] · w [N, K]ᵀ + bias [N] → [T, N]. A row of `w` holds the weights of one output, as files store them."""
    product: Floats = x @ w.T
    return product if bias is None else product + bias
