"""One token out of a row, by one random number.

A draw needs one random number, not V of them: probabilities are summed up in a fixed order and the first sum that
exceeds u · total is taken (inverse transform sampling). u comes from (seed, position) alone, see `philox.py`.

Axes: V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aie_engine.params import SamplingParams
from aie_engine.philox import uniform, uniform_one
from aie_engine.sampling.filters import filtered, weigh
from aie_engine.sampling.rows import Float32Array, SampleRow

__all__ = ["draw", "inverse_transform", "random_numbers"]

Float64Array = npt.NDArray[np.float64]

_STRETCH = 256  # tokens whose weights are summed up before any is looked at by itself
_U64 = 2**64 - 1
_FEW = 16


def random_numbers(rows: Sequence[SampleRow]) -> list[float]:
    """One in [0, 1) for each row, by its request's seed and its position."""
    assert all(row.params.seed is not None for row in rows), "a row that draws has no seed"
    seeds = [(row.params.seed or 0) & _U64 for row in rows]
    positions = [row.position for row in rows]
    if len(rows) <= _FEW:
        return [uniform_one(seed, position) for seed, position in zip(seeds, positions, strict=True)]
    numbers: list[float] = uniform(np.array(seeds, np.uint64), np.array(positions, np.uint64)).tolist()
    return numbers


def draw(row: Float32Array, wish: SamplingParams, largest: np.float32, u: float, scratch: Float32Array) -> int:
    """One token of the row [V], whose largest logit is `largest`, by the random number u in [0,1). `scratch` [V] is
    overwritten: making it anew for each row would cost as much as the rest."""
    if not wish.is_filtered:
        return inverse_transform(weigh(row, largest, wish.temperature, scratch), u)
    ids, weights = filtered(row, largest, wish)
    return int(ids[inverse_transform(weights, u)])


def inverse_transform(weights: Float32Array, u: float) -> int:
    """First index at which the running sum of `weights` exceeds u · total: first its stretch, then where within."""
    whole = len(weights) // _STRETCH * _STRETCH
    sums = [weights[:whole].reshape(-1, _STRETCH).sum(axis=1), weights[whole:].sum(keepdims=True)]
    stretches = np.cumsum(np.concatenate(sums), dtype=np.float64)
    aim = u * stretches[-1]
    stretch = _first_above(stretches, aim)
    begin = stretch * _STRETCH
    within = np.cumsum(weights[begin : begin + _STRETCH], dtype=np.float64)
    return begin + _first_above(within, aim - (stretches[stretch - 1] if stretch else 0.0))


def _first_above(sums: Float64Array, aim: float) -> int:
    """Index of the first of the rising `sums` above `aim`; where rounding left none, of the last that still rose."""
    index = int(np.searchsorted(sums, aim, side="right"))  # "right" never lands on a weight of 0
    return index if index < len(sums) else int(np.searchsorted(sums, sums[-1], side="left"))
