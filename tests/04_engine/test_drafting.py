"""Guesses out of the text itself, against a search through all of it; and what is expected of them."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from aie_engine.drafting import Guessing, PromptLookup
from aie_engine.step_cost import StepCost


def looked_up(text: Sequence[int]) -> PromptLookup:
    lookup = PromptLookup()
    lookup.extend(text)
    return lookup


def agreement(text: Sequence[int], position: int) -> int:
    """How many tokens in front of `position` are those at the text's end."""
    num = 0
    while num < position and text[position - 1 - num] == text[len(text) - 1 - num]:
        num += 1
    return num


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ([1, 2, 3, 4, 9, 1, 2], [3, 4, 9]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], [4, 9, 1]),  # both agree as far; the later one is taken
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], [3, 8, 1]),  # the earlier one agrees further
        ([5, 5, 5], [5, 5, 5]),
        ([1, 2, 1, 2], [1, 2, 1]),
        ([1, 2, 3], []),
        ([1, 2], []),
        ([1], []),
        ([], []),
    ],
)
def test_what_followed_the_same_tokens_before(text: list[int], guess: list[int]) -> None:
    assert looked_up(text).guess(3) == guess


def test_a_text_in_a_circle_is_guessed_beyond_its_end() -> None:
    assert looked_up([9, 1, 2, 3, 1, 2, 3]).guess(8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_reading_token_by_token_and_asking_in_between_changes_no_guess_for_the_worse() -> None:
    draw = random.Random(0)
    for _ in range(200):
        text = [draw.randrange(4) for _ in range(40)]
        lookup = PromptLookup()
        for end, token in enumerate(text, 1):
            lookup.extend([token])
            guess = lookup.guess(3)
            known = text[:end]
            matches = [agreement(known, p) for p in range(2, end) if agreement(known, p) >= 2]
            assert bool(guess) == bool(matches), known
            if guess:  # it is what followed an earlier occurrence of at least the last two tokens
                assert any((known + guess)[p : p + 3] == guess for p in range(2, end) if agreement(known, p) >= 2), (
                    known,
                    guess,
                )


def test_of_few_occurrences_the_longest_agreement_wins() -> None:
    draw = random.Random(1)
    for _ in range(300):
        text = [draw.randrange(6) for _ in range(30)]
        agreements = {p: agreement(text, p) for p in range(2, len(text)) if agreement(text, p) >= 2}
        if not 1 <= len(agreements) <= 8:
            continue
        best = max(agreements, key=lambda p: (agreements[p], p))
        guess = looked_up(text).guess(1)
        assert guess == [text[best]], (text, agreements)


def test_how_far_the_past_agrees_is_known_also_while_a_match_goes_on() -> None:
    lookup = looked_up([5, 1, 2, 3, 4, 6, 7, 8, 9, 1, 2])
    assert lookup.guess(1) == [3] and lookup.agreement == 2
    lookup.extend([3, 4])
    assert lookup.guess(2) == [6, 7] and lookup.agreement == 4
    lookup.extend([9])
    assert lookup.guess(1) == []


def test_the_index_is_made_from_the_known_tokens_when_it_is_asked() -> None:
    guessing = Guessing()
    tokens = np.array([1, 2, 3, 4, 1, 2, 77, 88], np.int32)  # the last two are no known tokens
    assert guessing.guess(tokens, 6, 2, 0.0) == [3, 4]
    tokens[6] = 3
    assert guessing.guess(tokens, 7, 2, 0.0) == [4, 1]


def test_hope_decides_how_many_guesses_are_made() -> None:
    def num_guesses(most: int, price: float) -> int:
        guessing = Guessing()
        guessing.hopes = [0.5, 0.9]
        return len(guessing.guess(np.array([1, 2, 3, 4, 1, 2], np.int32), 6, most, price))

    assert num_guesses(8, 0.0) == 8
    assert num_guesses(8, 0.25) == 2
    assert num_guesses(1, 0.25) == 1
    assert num_guesses(8, 0.6) == 0


def test_guesses_that_fail_are_given_up_and_tried_again_now_and_then() -> None:
    guessing = Guessing()
    tokens = np.array([1, 2, 3, 4, 1, 2], np.int32)
    tries = [step for step in range(1000) if guessing.guess(tokens, 6, 4, 0.2) and not guessing.settle(0, 1)]
    assert 5 < len(tries) < 60
    assert tries[-1] > 900, "it never gives up for good"
    assert guessing.hopes[1] == Guessing().hopes[1], "long matches have their own record"
    for _ in range(30):
        guessing.settle(4, 4)
    assert guessing.hopes[0] > 0.95
    assert len(guessing.guess(tokens, 6, 4, 0.3)) == 4


def seen(cost: StepCost, num_tokens: int, seconds: float, times: int = 3) -> None:
    for _ in range(times):
        cost.observe(num_tokens, seconds)


def test_the_price_list_is_a_line_between_what_was_seen() -> None:
    cost = StepCost()
    assert cost.seconds(4) is None
    seen(cost, 1, 10.0)
    assert cost.seconds(1) == cost.seconds(9) == 10.0, "what was never seen costs nothing more"
    seen(cost, 5, 12.0)
    assert cost.seconds(0) == 10.0
    assert cost.seconds(3) == 11.0
    assert cost.seconds(9) == 14.0
    seen(cost, 8, 12.0)
    assert cost.seconds(7) == 12.0
    assert cost.seconds(15) == 14.0, "beyond all: from the first to the last"


def test_steps_of_about_one_size_share_an_entry() -> None:
    cost = StepCost()
    for num_tokens, seconds in ((33, 50.0), (36, 40.0), (39, 45.0)):
        cost.observe(num_tokens, seconds)
    assert cost.seconds(32) == 40.0, "the least of the first three"
    seen(cost, 9, 20.0)
    assert cost.seconds(8) == 20.0


def test_a_disturbed_step_counts_for_little_and_is_forgotten() -> None:
    cost = StepCost()
    cost.observe(1, 500.0)
    seen(cost, 1, 10.0, 9)
    assert cost.seconds(1) == 10.0
    cost.observe(1, 100.0)
    assert cost.seconds(1) == pytest.approx(10 + 90 / 16)
    seen(cost, 2, 1000.0)
    assert cost.seconds(2) == 1000.0
    seen(cost, 1, 10.0, 2000)
    assert cost.seconds(2) == cost.seconds(1) == pytest.approx(10)
