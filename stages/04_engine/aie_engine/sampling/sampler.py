"""From logits to tokens, for all rows of a step at once: look for the largest, steer, draw, score.

Who is greedy and wishes nothing else costs its share of one look for the largest. Every other step is taken only for
the rows that want it: moving logits for all of them together, drawing and scoring row by row, since a row's V numbers
fit into a core's cache and those of all rows do not.

Axes: R rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np

from aie_engine.requests import TokenLogprobs
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
    moved, stuck = _steer(logits, rows, failed, token_ids, largest, argmax)
    without = failed | stuck
    drawing = [r for r, row in enumerate(rows) if not row.params.is_greedy and r not in without]
    scored = [r for r, row in enumerate(rows) if row.params.logprobs is not None and r not in without]
    logprobs: list[TokenLogprobs | None] = [None] * len(rows)
    if drawing or scored:
        scratch = np.empty(logits.shape[1], np.float32)
        with np.errstate(over="ignore"):
            for r, u in zip(drawing, random_numbers([rows[r] for r in drawing]), strict=True):
                token_ids[r] = draw(moved.get(r, logits[r]), rows[r].params, largest[r], u, scratch)
        for r in scored:
            logprobs[r] = score(logits[r], token_ids[r], rows[r].params.logprobs or 0, scratch=scratch)
    return SampleOutput(token_ids, logprobs, failed, stuck)


def _steer(
    logits: Float32Array,
    rows: Sequence[SampleRow],
    failed: frozenset[int],
    token_ids: list[int],
    largest: Float32Array,
    argmax: ArgmaxRows,
) -> tuple[dict[int, Float32Array], frozenset[int]]:
    """Move copies of the rows that wish for it, and look anew for their largest. Gives the copies by row, and the rows
    in which no token is left."""
    steered = [r for r, row in enumerate(rows) if row.is_steered and r not in failed]
    if not steered:
        return {}, frozenset()
    changed = logits[steered]
    with np.errstate(over="ignore"):
        steer(changed, [rows[r] for r in steered])
    best, largest[steered] = _best(changed, argmax)
    for r, token_id in zip(steered, best, strict=True):
        token_ids[r] = token_id
    return dict(zip(steered, changed, strict=True)), frozenset(r for r in steered if not np.isfinite(largest[r]))


def _best(logits: Float32Array, argmax: ArgmaxRows) -> tuple[list[int], Float32Array]:
    """The likeliest token of each row and its logit [R], which is NaN if there is any in the row: looking at it is
    looking at the whole row."""
    best = argmax(logits)
    return best.tolist(), logits[np.arange(len(logits)), best]
