"""All that moves logits, against a plain reference written from the definitions: one row, one token at a time."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_engine.params import SamplingParams
from aie_engine.sampling import SampleRow, sample
from aie_engine.sampling.filters import filtered
from aie_engine.sampling.steering import steer
from aie_tensor import InvalidInputError

VOCAB = 40
NEVER = -math.inf


def row_of(
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    *,
    stop_ids: Sequence[int] = (),
    mask: np.ndarray | None = None,
    **wishes: Any,
) -> SampleRow:
    params = SamplingParams(**{"temperature": 0.0, "seed": 1, "max_tokens": 100} | wishes).validated()
    known = np.array([*prompt, *answer, *[0] * 5], np.int32)  # room for what comes, as in the engine
    return SampleRow(params, len(prompt) + len(answer), known, len(prompt), frozenset(stop_ids), mask)


def mask_of(allowed: Sequence[int], vocab: int = VOCAB) -> np.ndarray:
    words = np.zeros(-(-vocab // 32), np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words


def steered_by_definition(logits: Sequence[float], row: SampleRow) -> list[float]:
    """The docstring of `steering.py` as plain sentences over plain lists."""
    wish, values = row.params, [np.float32(value) for value in logits]
    known = row.tokens[: row.position].tolist()
    answer = known[row.num_prompt :]
    for token in range(len(values)):
        if row.mask is not None and not int(row.mask[token // 32]) >> (token % 32) & 1:
            values[token] = np.float32(NEVER)
        if wish.allowed_token_ids is not None and token not in wish.allowed_token_ids:
            values[token] = np.float32(NEVER)
        for *begin, end in wish.bad_words:
            if token == end and (not begin or answer[-len(begin) :] == begin):
                values[token] = np.float32(NEVER)
        if len(answer) < wish.min_tokens and token in row.stop_ids:
            values[token] = np.float32(NEVER)
        values[token] += np.float32(dict(wish.logit_bias).get(token, 0.0))
        if token in known and wish.repetition_penalty != 1:
            penalty = np.float32(wish.repetition_penalty)
            values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        values[token] -= np.float32(wish.frequency_penalty) * np.float32(answer.count(token))
        values[token] -= np.float32(wish.presence_penalty) * np.float32(token in answer)
    return [float(value) for value in values]


tokens = st.integers(0, VOCAB - 1)
wishes = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3, 2.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.0, 0.3, 2.0]),
        "presence_penalty": st.sampled_from([-2.0, 0.0, 0.7]),
        "logit_bias": st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.0, 100.0]), max_size=5).map(
            lambda bias: tuple(bias.items())
        ),
        "bad_words": st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
        "allowed_token_ids": st.lists(tokens, min_size=1, max_size=30).map(tuple),
        "min_tokens": st.integers(0, 6),
    },
)
rows = st.builds(
    lambda prompt, answer, stop_ids, mask, wish: row_of(prompt, answer, stop_ids=stop_ids, mask=mask, **wish),
    st.lists(tokens, min_size=1, max_size=8),
    st.lists(st.integers(0, 3) | tokens, max_size=8),
    st.lists(tokens, max_size=3),
    st.none() | st.lists(tokens, max_size=35).map(mask_of),
    wishes,
)


@given(batch=st.lists(rows, min_size=1, max_size=6), seed=st.integers(0, 99))
def test_a_batch_is_steered_as_the_definitions_say(batch: list[SampleRow], seed: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal((len(batch), VOCAB)) * 3).astype(np.float32)
    changed = logits.copy()
    steer(changed, batch)
    for values, row, before in zip(changed, batch, logits, strict=True):
        expected = steered_by_definition(before.tolist(), row)
        assert values.tolist() == expected
        assert row.is_steered or expected == before.tolist(), "a row that wants something is never passed over"


@given(batch=st.lists(rows, min_size=1, max_size=6), seed=st.integers(0, 99))
def test_greedy_takes_the_likeliest_of_what_is_left(batch: list[SampleRow], seed: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal((len(batch), VOCAB)) * 3).astype(np.float32)
    before = logits.copy()
    output = sample(logits, batch)
    assert (logits == before).all(), "the logits are only read"
    for r, row in enumerate(batch):
        expected = steered_by_definition(before[r].tolist(), row)
        if max(expected) == NEVER:
            assert r in output.stuck and output.logprobs[r] is None
        else:
            assert r not in output.stuck
            assert output.token_ids[r] == expected.index(max(expected))


@given(batch=st.lists(rows, min_size=2, max_size=6), seed=st.integers(0, 99), temperature=st.sampled_from([0.7, 1.0]))
def test_each_row_gets_the_same_alone_and_in_company(batch: list[SampleRow], seed: int, temperature: float) -> None:
    logits = (np.random.default_rng(seed).standard_normal((len(batch), VOCAB)) * 3).astype(np.float32)
    for row in batch[::2]:
        row.params = SamplingParams(
            **{name: getattr(row.params, name) for name in row.params.__struct_fields__} | {"temperature": temperature}
        )
    together = sample(logits, batch)
    for r, row in enumerate(batch):
        alone = sample(logits[r : r + 1], [row])
        assert alone.token_ids[0] == together.token_ids[r]
        assert (0 in alone.stuck) == (r in together.stuck)


def test_penalties_count_the_prompt_or_only_the_answer() -> None:
    logits = np.array([[4.0, 4.0, -4.0, 4.0]], np.float32)
    prompt, answer = [0, 2], [1, 1]
    cases: list[tuple[dict[str, Any], list[float]]] = [
        ({"repetition_penalty": 2.0}, [2.0, 2.0, -8.0, 4.0]),
        ({"frequency_penalty": 0.5}, [4.0, 3.0, -4.0, 4.0]),
        ({"presence_penalty": 0.5}, [4.0, 3.5, -4.0, 4.0]),
        ({"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 2.0}, [2.0, 0.5, -8.0, 4.0]),
    ]
    for wish, expected in cases:
        changed = logits.copy()
        steer(changed, [row_of(prompt, answer, **wish)])
        assert changed.tolist() == [expected]


def test_a_bad_word_of_several_tokens_loses_only_its_end() -> None:
    logits = np.zeros((3, 8), np.float32)
    word = ((5, 6, 7),)
    answers = [[5, 6], [6, 5], [6]]
    steer(logits, [row_of([5], answer, bad_words=word) for answer in answers])
    assert [np.flatnonzero(row == NEVER).tolist() for row in logits] == [[7], [], []]


def test_nothing_left_is_said_and_costs_nobody_else_anything() -> None:
    logits = np.zeros((3, 8), np.float32)
    forbidding = row_of([1], allowed_token_ids=(3,), bad_words=((3,),))
    batch = [forbidding, row_of([1]), row_of([1], mask=np.zeros(1, np.uint32))]
    output = sample(logits, batch)
    assert output.stuck == {0, 2} and output.failed == frozenset()
    assert output.token_ids[1] == 0


def test_what_a_mask_does_not_reach_is_forbidden() -> None:
    logits = np.zeros((1, 70), np.float32)
    steer(logits, [row_of([1], mask=mask_of([3, 31, 32, 50], vocab=51))])
    assert np.flatnonzero(logits[0] == 0).tolist() == [3, 31, 32, 50]


def test_min_tokens_is_over_when_they_are_there() -> None:
    logits = np.array([[0.0, 9.0, 1.0]], np.float32)
    found = [sample(logits, [row_of([0], [2] * said, stop_ids=(1,), min_tokens=3)]).token_ids[0] for said in range(5)]
    assert found == [2, 2, 2, 1, 1]


def test_logprobs_are_of_the_raw_logits_whatever_moves_them() -> None:
    logits = (np.random.default_rng(3).standard_normal((1, VOCAB))).astype(np.float32)
    plain = sample(logits, [row_of([1], logprobs=3)]).logprobs[0]
    moved = sample(logits, [row_of([1], logprobs=3, logit_bias=((7, 100.0),))]).logprobs[0]
    assert plain is not None and moved is not None
    assert moved.token_id == 7 and moved.top == plain.top
    shifted = logits[0].astype(np.float64) - logits.max()
    assert moved.logprob == pytest.approx(shifted[7] - math.log(np.exp(shifted).sum()), abs=1e-5)


def distribution_by_definition(logits: Sequence[float], row: SampleRow) -> dict[int, float]:
    """All wishes of a row, one after the other, each on sorted lists of whole numbers and floats."""
    wish = row.params
    moved = steered_by_definition(logits, row)
    top = max(moved)
    left = {token: math.exp((value - top) / wish.temperature) for token, value in enumerate(moved) if value > NEVER}
    if wish.min_p > 0:
        left = {token: weight for token, weight in left.items() if weight >= wish.min_p}
    if wish.top_k > 0:
        left = dict(sorted(left.items(), key=lambda item: (-item[1], item[0]))[: wish.top_k])
    left = _until(left, wish.top_p, lambda token, share: -share)
    shares = [weight / sum(left.values()) for weight in left.values()]
    entropy = -sum(share * math.log(share) for share in shares)
    left = _until(left, wish.typical_p, lambda token, share: abs(-math.log(share) - entropy))
    total = sum(left.values())
    return {token: weight / total for token, weight in left.items()}


def _until(left: dict[int, float], mass: float, key: Any) -> dict[int, float]:
    if mass >= 1:
        return left
    total, kept, reached = sum(left.values()), {}, 0.0
    for token, weight in sorted(left.items(), key=lambda item: (key(item[0], item[1] / total), item[0])):
        kept[token] = weight
        reached += weight / total
        if reached >= mass:
            break
    return kept


@pytest.mark.parametrize("wish", [
    {"typical_p": 0.5},
    {"typical_p": 0.2, "temperature": 1.5},
    {"typical_p": 0.9, "top_k": 12, "top_p": 0.95, "min_p": 0.02},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    {"logit_bias": ((3, 2.0), (5, -100.0)), "top_p": 0.8},
    {"bad_words": ((7,), (1, 2), (2, 9)), "top_k": 20, "temperature": 1.3},
    {"allowed_token_ids": (1, 2, 3, 20, 21, 22), "min_tokens": 5, "repetition_penalty": 0.7},
])  # fmt: skip
def test_draws_follow_the_distribution_of_all_wishes(wish: dict[str, Any]) -> None:
    """Chi-square over what is left; seeds 0, 1, 2, … draw once each, at the same position."""
    count = 4000
    logits = (np.random.default_rng(11).standard_normal(VOCAB) * 1.5).astype(np.float32)
    row = row_of([1, 2, 3, 3], [2, 1, 1], stop_ids=(2, 21), **{"temperature": 1.0, "seed": 0} | wish)
    exact = distribution_by_definition(logits.tolist(), row)
    batch = [replace(row.at(row.position), params=row.params.with_seed(seed)) for seed in range(count)]
    found = np.bincount(sample(np.tile(logits, (count, 1)), batch).token_ids, minlength=VOCAB)
    assert set(np.flatnonzero(found).tolist()) <= set(exact)
    often = {token: share * count for token, share in exact.items() if share * count >= 5}
    statistic = sum((found[token] - expected) ** 2 / expected for token, expected in often.items())
    degrees = max(1, len(often) - 1)
    assert statistic < degrees + 4 * math.sqrt(2 * degrees)


@given(
    vocab=st.sampled_from([7, 300, 5000, 40_000]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
    seed=st.integers(0, 5),
    mass=st.sampled_from([0.05, 0.5, 0.95]),
    top_k=st.sampled_from([0, 3, 2000]),
)
def test_typical_keeps_those_nearest_to_the_entropy(
    vocab: int, spread: float, seed: int, mass: float, top_k: int
) -> None:
    row = (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)
    ids, weights = filtered(row, row.max(), SamplingParams(typical_p=mass, top_k=top_k))
    before = filtered(row, row.max(), SamplingParams(top_k=top_k))[0] if top_k else np.arange(vocab)
    share = np.exp(row[before].astype(np.float64) - float(row.max()))
    share /= share.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.abs(-np.log(share) + np.nansum(share * np.log(share)))
    own = np.isin(before, ids)
    assert ids.tolist() == sorted(ids.tolist()) and len(weights) == len(ids) >= 1
    farthest = away[own].max()
    # Surprisals are rounded to float32: neighbours at the edge may change places.
    assert away[~own].min(initial=np.inf) >= farthest - 1e-4
    assert share[own].sum() >= mass - 1e-3
    assert share[own & (away < farthest - 1e-4)].sum() < mass + 1e-3


def test_a_row_at_another_position_draws_as_the_request_will_there() -> None:
    """What speculation samples ahead is what is sampled step by step."""
    logits = (np.random.default_rng(5).standard_normal((4, VOCAB))).astype(np.float32)
    row = row_of([1, 2], temperature=1.0, seed=9, frequency_penalty=1.0, repetition_penalty=1.2, bad_words=((5,),))
    for step in range(4):  # the row as the engine moves it on
        (token,) = sample(logits[step : step + 1], [row]).token_ids
        row.tokens[row.position] = token
        row.position += 1
    ahead = sample(logits, [row.at(2 + step) for step in range(4)]).token_ids
    assert ahead == row.tokens[2:6].tolist()


@pytest.mark.parametrize(("wishes", "is_steered"), [
    ({}, False), ({"temperature": 0.7, "top_p": 0.9}, False), ({"min_tokens": 2}, True),
    ({"repetition_penalty": 1.1}, True), ({"logit_bias": ((1, 1.0),)}, True), ({"bad_words": ((1,),)}, True),
    ({"allowed_token_ids": (1,)}, True), ({"presence_penalty": 0.1}, True),
])  # fmt: skip
def test_rows_without_wishes_prepare_and_cost_nothing(wishes: dict[str, Any], is_steered: bool) -> None:
    row = row_of([1], **wishes)
    assert row.is_steered is is_steered
    assert (row.steering is None) is not is_steered


@pytest.mark.parametrize(("field", "value"), [
    ("typical_p", 0.0), ("typical_p", 1.1), ("repetition_penalty", 0.0), ("repetition_penalty", math.inf),
    ("frequency_penalty", 2.1), ("frequency_penalty", math.nan), ("presence_penalty", -2.1), ("min_tokens", -1),
    ("min_tokens", 17), ("logit_bias", ((1, 100.5),)), ("logit_bias", ((1, 1.0), (1, 2.0))),
    ("logit_bias", ((-1, 1.0),)), ("bad_words", ((),)), ("bad_words", ((3, -1),)), ("allowed_token_ids", ()),
    ("allowed_token_ids", (-1,)),
    ("prompt_logprobs", 21),
])  # fmt: skip
def test_wishes_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=field) as caught:
        SamplingParams(**{field: value}).validated()
    assert caught.value.param == field


@pytest.mark.parametrize(("field", "value"), [
    ("logit_bias", ((97, 1.0),)), ("bad_words", ((3, 97),)), ("allowed_token_ids", (3, 2000)),
])  # fmt: skip
def test_tokens_that_the_model_has_not_are_refused_by_name(field: str, value: Any) -> None:
    params = SamplingParams(**{field: value}).validated()
    params.check_vocabulary(2001)
    with pytest.raises(InvalidInputError, match=f"{field}.*96") as caught:
        params.check_vocabulary(97)
    assert caught.value.param == field
