"""Sampling: distributions, filters, seeds, log-probabilities, and rows that are not numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aie_engine.params import SamplingParams
from aie_engine.philox import philox4x32, uniform, uniform_one
from aie_engine.sampling import ArgmaxRows, SampleOutput, SampleRow, numpy_argmax
from aie_engine.sampling import sample as sample_rows
from aie_engine.sampling.draws import inverse_transform
from aie_engine.sampling.filters import filtered
from aie_tensor import InvalidInputError, ops

GREEDY = SamplingParams(temperature=0)


def sample(
    logits: np.ndarray, params: Sequence[SamplingParams], positions: Sequence[int], argmax: ArgmaxRows = numpy_argmax
) -> SampleOutput:
    """With rows that have no tokens, as far as their wishes do not ask for any."""
    none = np.empty(0, np.int32)
    rows = [SampleRow(wish, position, none, 0) for wish, position in zip(params, positions, strict=True)]
    return sample_rows(logits, rows, argmax=argmax)


def drawing(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 1} | fields).validated()


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)


def draws(row: np.ndarray, params: SamplingParams, count: int) -> np.ndarray:
    """Frequencies [V] of `count` draws from one row, at positions 0, 1, 2, …"""
    output = sample(np.tile(row, (count, 1)), [params] * count, range(count))
    return np.bincount(output.token_ids, minlength=len(row)) / count


@pytest.mark.parametrize(("counter", "key", "expected"), [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
])  # fmt: skip
def test_philox_gives_the_published_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox4x32(np.array([counter], dtype=np.uint64), np.array([key], dtype=np.uint64))
    assert words.tolist() == [expected]


def test_uniform_fills_the_unit_interval_evenly() -> None:
    numbers = uniform(np.full(20_000, 7, dtype=np.uint64), np.arange(20_000, dtype=np.uint64))
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.abs(np.histogram(numbers, bins=10, range=(0, 1))[0] / 2000 - 1).max() < 0.1


@given(seed=st.integers(0, 2**64 - 1), counter=st.integers(0, 2**64 - 1))
def test_one_number_alone_is_the_same_number(seed: int, counter: int) -> None:
    (among,) = uniform(np.array([seed], np.uint64), np.array([counter], np.uint64))
    assert uniform_one(seed, counter) == among


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = np.array([[0, 3, 3, 1], [5, 1, 1, 1]], dtype=np.float32)
    assert sample(logits, [GREEDY, GREEDY], [4, 9]).token_ids == [1, 0]


def test_greedy_asks_the_given_argmax() -> None:
    output = sample(random_logits(3, 8), [GREEDY] * 3, [0, 0, 0], argmax=lambda x: np.full(len(x), 5, dtype=np.int32))
    assert output.token_ids == [5, 5, 5]


@pytest.mark.parametrize("params", [
    drawing(top_k=1), drawing(temperature=1e-30), drawing(top_p=1e-9), drawing(min_p=1),
])  # fmt: skip
def test_the_narrowest_filters_are_greedy(params: SamplingParams) -> None:
    logits = random_logits(5, 6000)
    assert sample(logits, [params] * 5, range(5)).token_ids == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    row = random_logits(1, 12, spread=1.5)[0]
    frequencies = draws(row, drawing(temperature=temperature), 20_000)
    assert np.abs(frequencies - ops.softmax(row / np.float32(temperature))).max() < 0.012


@pytest.mark.parametrize("vocab", [12, 700])
@pytest.mark.parametrize("wish", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 7, "top_p": 0.9}])
def test_draws_follow_the_filtered_distribution(vocab: int, wish: dict[str, Any]) -> None:
    """Chi-square over the kept tokens; those expected fewer than five times count as one."""
    row, params, count = random_logits(1, vocab, seed=5, spread=2.0)[0], drawing(temperature=0.8, **wish), 8000
    weights = np.exp((row - row.max()) / np.float32(0.8))
    *kept, _ = kept_by_definition(weights, params)
    exact = np.zeros(vocab)
    exact[kept] = weights[kept] / weights[kept].sum(dtype=np.float64) * count
    found = draws(row, params, count) * count
    assert found[exact == 0].sum() == 0
    rare = exact < 5
    exact, found = (np.append(x[~rare], x[rare].sum()) for x in (exact, found))
    exact, found = exact[exact > 0], found[exact > 0]
    degrees = len(exact) - 1
    assert ((found - exact) ** 2 / exact).sum() < degrees + 4 * np.sqrt(2 * degrees)


@given(
    count=st.sampled_from([1, 2, 255, 256, 257, 1000]), seed=st.integers(0, 99), zeros=st.booleans(),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53])),
)  # fmt: skip
def test_a_draw_is_the_first_running_sum_above_u(count: int, seed: int, zeros: bool, u: float) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random(count, dtype=np.float32)
    if zeros:  # as underflow leaves behind: also at both ends
        weights[rng.random(count) < 0.7] = 0
        weights[[0, -1]] = 0
        weights[count // 2] = 1
    sums = np.cumsum(weights, dtype=np.float64)
    found = inverse_transform(weights, u)
    assert weights[found] > 0
    before, aim = sums[found] - weights[found], u * sums[-1]
    assert before - 1e-9 <= aim <= sums[found] + 1e-9  # sums in another order round to either side


def kept_by_definition(weights: np.ndarray, params: SamplingParams) -> list[int]:
    """The filters as their definitions say, on the whole sorted row; and, last, the token after those."""
    ranked = np.argsort(-weights, kind="stable")
    passing = ranked[weights[ranked] >= np.float32(params.min_p)]
    if params.top_k > 0:
        passing = passing[: params.top_k]
    sums = np.cumsum(weights[passing], dtype=np.float64)
    length = int(np.argmax(sums >= params.top_p * sums[-1])) + 1 if params.top_p < 1 else len(passing)
    return ranked[: length + 1].tolist() if length < len(ranked) else [*ranked.tolist(), -1]


@given(
    vocab=st.sampled_from([7, 300, 4097, 20_000]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 4.0]),
    seed=st.integers(0, 9),
    params=st.builds(
        drawing,
        top_k=st.sampled_from([0, 1, 2, 40, 1024, 3000, 10**6]),
        top_p=st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]),
        min_p=st.sampled_from([0.0, 0.001, 0.2, 1.0]),
        temperature=st.sampled_from([1.0, 1e-4, 0.8, 30.0]),
    ),
)
def test_filters_keep_what_their_definitions_say(vocab: int, spread: float, seed: int, params: SamplingParams) -> None:
    assume(params.is_filtered)
    row = random_logits(1, vocab, seed, spread)[0]
    weights = np.exp((row - row.max()) / np.float32(params.temperature))
    *expected, after = kept_by_definition(weights, params)
    ids, kept_weights = filtered(row, row.max(), params)
    kept = ids.tolist()
    assert kept_weights.tolist() == weights[kept].tolist()
    assert kept == sorted(kept)
    # A sum over many weights may round to either side of top_p: one token more or less is not an error.
    assert set(kept) in ({*expected}, {*expected[:-1]}, {*expected, after})


@pytest.mark.parametrize("params", [
    drawing(), drawing(top_p=0.9), drawing(top_k=40), drawing(min_p=0.05, temperature=1.7),
])  # fmt: skip
def test_a_seed_draws_the_same_alone_and_in_a_batch(params: SamplingParams) -> None:
    logits = random_logits(6, 5000)
    others = [drawing(seed=9), GREEDY, params, drawing(seed=3, top_k=7), drawing(seed=2**64 - 1), drawing(seed=-1)]
    together = sample(logits, others, [3, 1, 77, 5, 2, 2])
    alone = sample(logits[2:3], [params], [77])
    assert alone.token_ids == together.token_ids[2:3]


def test_seed_and_position_both_matter() -> None:
    logits = np.zeros((100, 1000), dtype=np.float32)
    by_position = sample(logits, [drawing()] * 100, range(100)).token_ids
    by_seed = sample(logits, [drawing(seed=seed) for seed in range(100)], [0] * 100).token_ids
    assert len(set(by_position)) > 80 and len(set(by_seed)) > 80


def test_impossible_tokens_are_never_drawn() -> None:
    row = np.full(50, -np.inf, dtype=np.float32)
    row[[3, 30]] = 1.0
    frequencies = draws(row, drawing(temperature=5.0), 400)
    assert set(np.flatnonzero(frequencies)) == {3, 30}


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_numbers_fails_alone(poison: float) -> None:
    logits = random_logits(4, 100)
    healthy = sample(logits, [GREEDY, drawing(), GREEDY, drawing(logprobs=2)], range(4))
    logits[1, 17] = poison
    output = sample(logits, [GREEDY, drawing(logprobs=1), GREEDY, drawing(logprobs=2)], range(4))
    assert output.failed == {1} and output.logprobs[1] is None
    assert [output.token_ids[i] for i in (0, 2, 3)] == [healthy.token_ids[i] for i in (0, 2, 3)]


def test_a_row_of_nothing_but_minus_infinity_fails_and_huge_logits_do_not() -> None:
    logits = np.stack([np.full(100, -np.inf), np.full(100, 3e38)]).astype(np.float32)
    output = sample(logits, [drawing(), drawing()], [0, 0])
    assert output.failed == {0} and 0 <= output.token_ids[1] < 100


@pytest.mark.parametrize("vocab", [100, 20_000])
def test_logprobs_are_of_the_raw_logits(vocab: int) -> None:
    logits = random_logits(2, vocab)
    output = sample(logits, [drawing(logprobs=5, temperature=0.3, top_k=3), SamplingParams(temperature=0)], [0, 0])
    expected = ops.log_softmax(logits)[0]
    found = output.logprobs[0]
    assert found is not None and output.logprobs[1] is None
    assert found.token_id == output.token_ids[0]
    assert found.logprob == pytest.approx(expected[found.token_id], abs=1e-5)
    assert [token for token, _ in found.top] == np.argsort(-expected)[:5].tolist()
    assert [value for _, value in found.top] == pytest.approx(np.sort(expected)[::-1][:5].tolist(), abs=1e-5)


def test_zero_logprobs_gives_the_sampled_token_alone() -> None:
    (found,) = sample(random_logits(1, 30), [drawing(logprobs=0)], [0]).logprobs
    assert found is not None and found.top == () and found.logprob < 0


@pytest.mark.parametrize(("field", "value"), [
    ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("top_k", -2), ("top_p", 0.0),
    ("top_p", 1.01), ("top_p", float("nan")), ("min_p", -0.1), ("min_p", 1.5), ("seed", 2**64), ("seed", -(2**63) - 1),
    ("max_tokens", 0), ("stop_token_ids", (5, -1)), ("logprobs", 21), ("logprobs", -1),
])  # fmt: skip
def test_parameters_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=field) as caught:
        SamplingParams(**{field: value}).validated()
    assert caught.value.param == field


def test_parameters_at_the_edge_are_accepted() -> None:
    edge = SamplingParams(temperature=0, top_k=-1, top_p=1, min_p=1, seed=2**64 - 1, max_tokens=1, logprobs=20)
    assert edge.validated() is edge
