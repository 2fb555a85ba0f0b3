"""From logits to tokens, for all rows of a step at once.

Three ideas keep this short and well below a millisecond per row:

- A draw needs one random number, not V of them: probabilities are summed up in a fixed order and the first sum that
  exceeds u · total is taken (inverse transform sampling). u comes from (seed, position) alone, see `philox.py`.
- top-k, top-p and min-p all keep a *prefix* of the row sorted from likely to unlikely. So a filter is a number, the
  length of the prefix, and the three compose by shortening it.
- Sorting 49152 numbers to look at the first fifty is waste. Every token above any threshold is a prefix too, whatever
  the threshold. One is guessed from a sample of the row so that about `_CANDIDATES` tokens pass; only those are sorted,
  and if the filter wanted more, the whole row is.

Axes: R rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aie_engine.batch import Int32Array
from aie_engine.params import MAX_LOGPROBS, SamplingParams
from aie_engine.philox import uniform
from aie_engine.requests import TokenLogprobs

__all__ = ["ArgmaxRows", "SampleOutput", "numpy_argmax", "sample"]

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]
ArgmaxRows = Callable[[Float32Array], Int32Array]

_CANDIDATES = 1024
_STRETCH = 256  # tokens whose weights are summed up before any is looked at by itself
_STRIDE = 16  # one of so many logits is looked at to guess the threshold
_U64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """One entry per row."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]  # None where the request wants none, or where the row failed
    failed: frozenset[int]  # rows whose logits were no numbers (NaN, +∞, or nothing but −∞); ignore their token id


def numpy_argmax(logits: Float32Array) -> Int32Array:
    """Index of each row's first largest, or first NaN where there is one: [R, V] → [R]."""
    best: Int32Array = np.argmax(logits, axis=1).astype(np.int32)
    return best


def sample(
    logits: Float32Array,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    *,
    argmax: ArgmaxRows = numpy_argmax,
) -> SampleOutput:
    """Choose one token for each row of `logits` [R, V].

    positions: [R] the position that the token will take in its sequence. With the request's seed it decides the draw,
    so that the same seed gives the same text alone or in any batch. Rows that draw must have a seed.
    """
    assert len(logits) == len(params) == len(positions), f"{len(logits)=} {len(params)=} {len(positions)=}"
    best = argmax(logits)
    token_ids: list[int] = best.tolist()
    # The largest is NaN if there is any, so looking at it is looking at the whole row.
    largest = logits[np.arange(len(logits)), best]
    failed = frozenset(np.flatnonzero(~np.isfinite(largest)).tolist())
    drawing = [row for row, wish in enumerate(params) if not wish.is_greedy and row not in failed]
    if drawing:
        with np.errstate(over="ignore"):
            for row, u in zip(drawing, _uniform(drawing, params, positions), strict=True):
                token_ids[row] = _draw(logits[row], params[row], largest[row], u)
    logprobs = [
        None if wish.logprobs is None or row in failed else _logprobs(logits[row], token_ids[row], wish.logprobs)
        for row, wish in enumerate(params)
    ]
    return SampleOutput(token_ids, logprobs, failed)


def _uniform(rows: Sequence[int], params: Sequence[SamplingParams], positions: Sequence[int]) -> list[float]:
    seeds = [params[row].seed for row in rows]
    assert None not in seeds, "a row that draws has no seed"
    numbers: list[float] = uniform(
        np.array([(seed or 0) & _U64 for seed in seeds], dtype=np.uint64),
        np.array([positions[row] for row in rows], dtype=np.uint64),
    ).tolist()
    return numbers


def _draw(row: Float32Array, wish: SamplingParams, largest: np.float32, u: float) -> int:
    """One token of the row [V], whose largest logit is `largest`, by the random number u in [0,1)."""
    # Subtracting first keeps a tiny temperature from overflowing: the likeliest is always exp(0).
    weights = row - largest
    weights /= np.float32(wish.temperature)
    np.exp(weights, out=weights)
    if wish.top_k <= 0 and wish.top_p >= 1 and wish.min_p <= 0:
        return _inverse_transform(weights, u)
    kept = _kept_tokens(weights, wish)
    return int(kept[_inverse_transform(weights[kept], u)])


def _inverse_transform(weights: Float32Array, u: float) -> int:
    """First index at which the running sum of `weights` exceeds u · total: first its stretch, then where within."""
    stretches = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _STRETCH), dtype=np.float64))
    aim = u * stretches[-1]
    stretch = _first_above(stretches, aim)
    begin = stretch * _STRETCH
    within = np.cumsum(weights[begin : begin + _STRETCH], dtype=np.float64)
    return begin + _first_above(within, aim - (stretches[stretch - 1] if stretch else 0.0))


def _first_above(sums: Float64Array, aim: float) -> int:
    """Index of the first of the rising `sums` above `aim`; where rounding left none, of the last that still rose."""
    index = int(np.searchsorted(sums, aim, side="right"))  # "right" never lands on a weight of 0
    return index if index < len(sums) else int(np.searchsorted(sums, sums[-1], side="left"))


def _kept_tokens(weights: Float32Array, wish: SamplingParams) -> IndexArray:
    """Ids that pass min_p, top_k and top_p, in ascending order. `weights` [V] are relative to the likeliest's 1."""
    ids = _candidates(weights)
    likeliest = _descending(weights[ids])
    length = _prefix_length(weights, likeliest, wish)
    if length is None:
        ids = np.arange(len(weights))
        likeliest = _descending(weights)
        length = _prefix_length(weights, likeliest, wish)
        assert length is not None, "no prefix is longer than the whole row"
    edge = likeliest[length - 1]
    kept: IndexArray = ids[weights[ids] >= edge]
    if surplus := len(kept) - length:  # several weigh as much as the last that passes: the lower ids go first
        kept = np.delete(kept, np.flatnonzero(weights[kept] == edge)[-surplus:])
    return kept


def _candidates(row: Float32Array, around: int = _CANDIDATES) -> IndexArray:
    """Ids of a prefix of the sorted row, in ascending order: around so many tokens, and at least a sixteenth of them,
    or all of a short row."""
    if len(row) <= 4 * around:
        return np.arange(len(row))
    glimpse = row[::_STRIDE]
    rank = len(glimpse) - around // _STRIDE
    return np.flatnonzero(row >= np.partition(glimpse, rank)[rank])


def _descending(values: Float32Array) -> Float32Array:
    return np.sort(values)[::-1]


def _prefix_length(weights: Float32Array, likeliest: Float32Array, wish: SamplingParams) -> int | None:
    """How many of `likeliest`, the first weights in order, pass; None if the answer may lie beyond them."""
    is_whole = len(likeliest) == len(weights)
    is_limited = wish.min_p > 0 or wish.top_k > 0
    kept = len(likeliest)
    if wish.min_p > 0:
        kept = int(np.searchsorted(-likeliest, -np.float32(wish.min_p), side="right"))
    if wish.top_k > 0:
        kept = min(kept, wish.top_k)
    # A prefix that ends inside what was looked at is sure; one that reaches its edge may go on behind it.
    if is_limited and kept == len(likeliest) and not is_whole:
        return None
    if wish.top_p < 1:
        # What min_p and top_k left is the new whole, of which top_p is a part.
        total = (likeliest[:kept] if is_limited else weights).sum(dtype=np.float64)
        sums = np.cumsum(likeliest[:kept], dtype=np.float64)
        kept = min(kept, 1 + int(np.searchsorted(sums, wish.top_p * total, side="left")))
    return kept if kept < len(likeliest) or is_whole else None


def _logprobs(row: Float32Array, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities under the raw logits, before temperature and filters: the model's own opinion."""
    largest = row.max()
    weights = row - largest
    normalizer = largest + np.log(np.exp(weights, out=weights).sum(dtype=np.float64))
    candidates = _candidates(row, MAX_LOGPROBS * _STRIDE)
    top = candidates[np.argsort(-row[candidates], kind="stable")[:num_top]].tolist()
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(row[token_id] - normalizer),
        top=tuple((token, float(row[token] - normalizer)) for token in top),
    )
