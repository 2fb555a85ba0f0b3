"""From logits to tokens, for all rows of a step at once: steer, draw, score.

Axes: R rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np

from aie_engine.sampling.draws import draw, random_numbers
from aie_engine.sampling.logprobs import score
from aie_engine.sampling.rows import ArgmaxRows, Float32Array, SampleOutput, SampleRow, numpy_argmax
from aie_engine.sampling.steering import steer

__all__ = ["sample"]


def sample(logits: Float32Array, rows: Sequence[SampleRow], *, argmax: ArgmaxRows = numpy_argmax) -> SampleOutput:
    """Choose one token for each row of `logits` [R, V], which is only read.

    A row's token depends on its logits, its request's wishes and seed, and its position: it is the same alone or in any
    batch. Rows that draw must have a seed.
    """
    assert len(logits) == len(rows), f"{len(logits)=} {len(rows)=}"
    token_ids, largest = _best(logits, argmax)
    failed = frozenset(np.flatnonzero(~np.isfinite(largest)).tolist())
    stuck: frozenset[int] = frozenset()
    sources: dict[int, Float32Array] = {}  # of steered rows
    steered = [r for r, row in enumerate(rows) if row.is_steered and r not in failed]
    if steered:
        changed = logits[steered]  # a copy
        with np.errstate(over="ignore"):
            steer(changed, [rows[r] for r in steered])
        best, peaks = _best(changed, argmax)
        largest[steered] = peaks
        for r, token_id in zip(steered, best, strict=True):
            token_ids[r] = token_id
        sources = dict(zip(steered, changed, strict=True))
        stuck = frozenset(r for r, peak in zip(steered, peaks, strict=True) if not np.isfinite(peak))
    without = failed | stuck
    drawing = [r for r, row in enumerate(rows) if not row.params.is_greedy and r not in without]
    if drawing:
        scratch = np.empty(logits.shape[1], np.float32)
        with np.errstate(over="ignore"):
            for r, u in zip(drawing, random_numbers([rows[r] for r in drawing]), strict=True):
                token_ids[r] = draw(sources.get(r, logits[r]), rows[r].params, largest[r], u, scratch)
    logprobs = [
        None if row.params.logprobs is None or r in without else score(logits[r], token_ids[r], row.params.logprobs)
        for r, row in enumerate(rows)
    ]
    return SampleOutput(token_ids, logprobs, failed, stuck)


def _best(logits: Float32Array, argmax: ArgmaxRows) -> tuple[list[int], Float32Array]:
    """The likeliest token of each row and its logit [R], which is NaN if there is any in the row: looking at it is
    looking at the whole row."""
    best = argmax(logits)
    return best.tolist(), logits[np.arange(len(logits)), best]
