"""Log-probabilities of a prompt's tokens: the score and the rank of each behind those before it."""

import math

import numpy as np
import pytest

from aie_engine.sampling import score_prompt


@pytest.mark.parametrize("vocab", [30, 20_000])
@pytest.mark.parametrize("num_top", [0, 5])
def test_each_token_is_scored_by_the_row_before_it(vocab: int, num_top: int) -> None:
    logits = (np.random.default_rng(1).standard_normal((6, vocab)) * 3).astype(np.float32)
    targets = [3, 0, 29, int(logits[3].argmax()), 7, 8]
    found = score_prompt(logits, targets, num_top)
    for row, target, scores in zip(logits.astype(np.float64), targets, found, strict=True):
        log_total = math.log(np.exp(row - row.max()).sum()) + row.max()
        assert scores.token_id == target
        assert scores.logprob == pytest.approx(row[target] - log_total, abs=1e-5)
        assert scores.rank == 1 + int((row > row[target]).sum())
        order = np.argsort(-row)[:num_top].tolist()
        assert [token for token, _ in scores.top] == order
        assert [value for _, value in scores.top] == pytest.approx((row[order] - log_total).tolist(), abs=1e-5)
    assert found[3].rank == 1


def test_impossible_tokens_have_no_chance() -> None:
    logits = np.array([[0.0, -np.inf]], np.float32)
    (found,) = score_prompt(logits, [1], 1)
    assert found.logprob == -math.inf and found.rank == 2
