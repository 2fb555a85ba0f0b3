"""Which tokens stay in the draw: min_p, top_k, top_p and typical_p, in this order, each on what the one before left.

- min_p, top_k and top_p all keep a *prefix* of the row sorted from likely to unlikely. So a filter is a number, the
  length of the prefix, and the three compose by shortening it.
- Sorting 49152 numbers to look at the first fifty is waste. Every token above any threshold is a prefix too, whatever
  the threshold. One is guessed from a sample of the row so that about a thousand tokens pass, or fewer for a small
  top_k; only those are sorted, and if a filter wanted more, eight times as many are, and in the end the whole row.
  min_p says the threshold itself.
- typical_p (Meister, Pimentel, Wiher, Cotterell 2023, "Locally typical sampling") keeps a prefix of another order: from
  those whose surprisal −log p is closest to its mean, the entropy, until they have that probability together. What has
  probability 0 has no surprisal and is never kept.

Ties go to the lower id, so that what is kept follows from the logits alone.

Axes: V vocabulary, K tokens that are kept.
"""

import math

import numpy as np
import numpy.typing as npt

from aie_engine.params import SamplingParams
from aie_engine.sampling.rows import Float32Array

__all__ = ["candidates", "filtered", "weigh"]

IndexArray = npt.NDArray[np.intp]

_FEW, _LADDER = 256, (1024, 8192)
_LEAST = np.float32(-np.inf)
_STRIDE = 16  # one of so many numbers is looked at to guess the threshold


def weigh(
    logits: Float32Array, largest: np.float32, temperature: float, out: Float32Array | None = None
) -> Float32Array:
    """What the logits come to in the draw, as parts of the likeliest token's 1. `out` takes them, where given."""
    # Subtracting first keeps a tiny temperature from overflowing: the likeliest is always exp(0).
    weights: Float32Array = np.subtract(logits, largest, out=out)
    if temperature != 1:
        weights /= np.float32(temperature)
    return np.exp(weights, out=weights)


def filtered(row: Float32Array, largest: np.float32, wish: SamplingParams) -> tuple[IndexArray, Float32Array]:
    """Ids [K] that pass all filters, in ascending order, and their weights [K]. `largest` is that of the row [V]."""
    ids: IndexArray | None = None  # all
    if wish.min_p > 0:
        ids, weights = _likely(row, largest, wish)
    elif wish.top_k > 0:
        ids, weights = _likeliest(row, largest, wish)
    else:
        weights = weigh(row, largest, wish.temperature)
    # What is left is the new whole, of which the next filter keeps a part.
    for mass, keep in ((wish.top_p, _nucleus), (wish.typical_p, _typical)):
        if mass < 1:
            own = keep(weights, mass)
            ids, weights = own if ids is None else ids[own], weights[own]
    assert ids is not None, f"no filter in {wish}"
    return ids, weights


def candidates(values: Float32Array, around: int) -> IndexArray:
    """Ids of a prefix of the row sorted from large to small, in ascending order: around so many of them, and at least a
    sixteenth of that, or all of a short row."""
    if len(values) <= 4 * around:
        return np.arange(len(values))
    glimpse = values[::_STRIDE]
    rank = len(glimpse) - around // _STRIDE
    return np.flatnonzero(values >= np.partition(glimpse, rank)[rank])


def _likely(row: Float32Array, largest: np.float32, wish: SamplingParams) -> tuple[IndexArray, Float32Array]:
    """Ids and weights that pass min_p, and top_k if there is one."""
    # By a bound on the logits, a little too low for all rounding, so that weights are computed only for a few.
    bound = largest + np.float32(wish.temperature * (math.log(wish.min_p) - 0.01))
    ids = np.flatnonzero(row >= np.nextafter(bound, _LEAST))
    weights = weigh(row[ids], largest, wish.temperature)
    own = np.flatnonzero(weights >= np.float32(wish.min_p))
    if 0 < wish.top_k < len(own):
        own = own[_first(weights[own], np.sort(weights[own])[::-1], wish.top_k)]
    return ids[own], weights[own]


def _likeliest(row: Float32Array, largest: np.float32, wish: SamplingParams) -> tuple[IndexArray, Float32Array]:
    """Ids and weights that pass top_k. Logits and weights have the same order."""
    for around in (_FEW, *_LADDER, len(row)):
        if around < 4 * wish.top_k and around < len(row):
            continue  # too few of them might pass
        ids = candidates(row, around)
        if len(ids) > wish.top_k:
            break
    weights = weigh(row[ids], largest, wish.temperature)
    if wish.top_k < len(ids):
        own = _first(weights, np.sort(weights)[::-1], wish.top_k)
        ids, weights = ids[own], weights[own]
    return ids, weights


def _nucleus(weights: Float32Array, top_p: float) -> IndexArray:
    """Indices of the likeliest that together reach `top_p` of the whole, in ascending order."""
    aim = top_p * float(weights.sum())  # NumPy adds in pairs: float32 is exact enough
    for around in (*_LADDER, len(weights)):
        ids = candidates(weights, around)
        own = weights[ids]
        likeliest = np.sort(own)[::-1]
        length = 1 + int(np.searchsorted(np.cumsum(likeliest, dtype=np.float64), aim, side="left"))
        if length < len(ids):
            return ids[_first(own, likeliest, length)]
    return ids


def _first(values: Float32Array, descending: Float32Array, length: int) -> IndexArray:
    """Indices, ascending, of the `length` largest of `values`, which are given in order, too. Of several that are as
    large as the last that passes, the lower ones go first."""
    edge = descending[length - 1]
    kept = np.flatnonzero(values >= edge)
    if surplus := len(kept) - length:
        kept = np.delete(kept, np.flatnonzero(values[kept] == edge)[-surplus:])
    return kept


def _typical(weights: Float32Array, mass: float) -> IndexArray:
    """Indices of the most typical that together reach `mass` of the whole, in ascending order."""
    share = weights / np.float32(weights.sum(dtype=np.float64))
    possible = np.flatnonzero(share > 0)
    share = share[possible]
    surprisal = -np.log(share)
    nearness = -np.abs(surprisal - np.float32((share * surprisal).sum(dtype=np.float64)))
    for around in (*_LADDER, len(possible)):
        ids = candidates(nearness, around)
        order = ids[np.argsort(-nearness[ids], kind="stable")]
        length = 1 + int(np.searchsorted(np.cumsum(share[order], dtype=np.float64), mass, side="left"))
        if length < len(order):
            break
    return np.sort(possible[order[:length]])
