"""Log-probabilities of tokens, under the raw logits: before bias, penalties, temperature and filters, the model's own
opinion.

Axes: R rows, V vocabulary.
"""

import math
from collections.abc import Sequence

import numpy as np

from aie_engine.params import MAX_LOGPROBS
from aie_engine.requests import TokenLogprobs
from aie_engine.sampling.filters import candidates, weigh
from aie_engine.sampling.rows import Float32Array

__all__ = ["score", "score_prompt"]

_AROUND = 16 * MAX_LOGPROBS  # a sixteenth of them is sure to be there


def score(
    row: Float32Array, token_id: int, num_top: int, *, with_rank: bool = False, scratch: Float32Array | None = None
) -> TokenLogprobs:
    """How likely the token was in the row [V], and the `num_top` likeliest ones. `scratch` [V] is overwritten."""
    best = int(row.argmax())
    largest = row[best]
    normalizer = float(largest) + math.log(weigh(row, largest, 1.0, scratch).sum())  # summed in pairs: 1e-6 at worst
    top = [best] if num_top else []
    if num_top > 1:
        ids = candidates(row, _AROUND)
        top = ids[np.argsort(-row[ids], kind="stable")[:num_top]].tolist()
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(row[token_id]) - normalizer,
        top=tuple((token, float(row[token]) - normalizer) for token in top),
        rank=1 + int(np.count_nonzero(row > row[token_id])) if with_rank else None,
    )


def score_prompt(logits: Float32Array, target_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """How likely each token of a prompt was behind those before it. logits [R, V]: the rows of the tokens before
    `target_ids` [R], so that row r is the model's opinion of what target r should be."""
    assert len(logits) == len(target_ids), f"{len(logits)=} {len(target_ids)=}"
    scratch = np.empty(logits.shape[1], np.float32)
    return [
        score(row, int(token), num_top, with_rank=True, scratch=scratch)
        for row, token in zip(logits, target_ids, strict=True)
    ]
