"""Stop strings: whatever the cut into tokens, the same text as a search in the whole."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_server import StopStringMatcher

ALPHABET = "ab\u00e9"  # few letters, so that stop strings overlap themselves and each other


def whole_text_search(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition, plainly: the match that ends first; of those that end there, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(
    text=st.text(ALPHABET, max_size=60),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=6), max_size=4),
    cuts=st.lists(st.integers(0, 60), max_size=20),
    include=st.booleans(),
)
def test_any_cut_into_tokens_gives_what_a_search_in_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher = StopStringMatcher(stops, include=include)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = ""
    expected, stop = whole_text_search(text, stops, include)
    for start, end in pairwise(edges):
        shown += matcher.push(text[start:end])
        assert expected.startswith(shown), "a character was shown that does not belong to the output"
        if matcher.matched is not None:
            break
    else:
        shown += matcher.finish()
    assert (shown, matcher.matched) == (expected, stop)


@given(text=st.text(ALPHABET, max_size=40), stop=st.text(ALPHABET, min_size=1, max_size=8))
def test_never_holds_back_more_than_could_become_the_stop_string(text: str, stop: str) -> None:
    matcher = StopStringMatcher([stop])
    shown = ""
    for position, character in enumerate(text):
        shown += matcher.push(character)
        if matcher.matched is not None:
            return
        held = text[: position + 1][len(shown) :]
        assert stop.startswith(held) and len(held) < len(stop)


def test_without_stop_strings_text_passes() -> None:
    assert StopStringMatcher([]).push("anything") == "anything"


@pytest.mark.parametrize(("include", "expected"), [(False, "x"), (True, "xaba")])
def test_longest_of_two_that_end_together(include: bool, expected: str) -> None:
    matcher = StopStringMatcher(["aba", "cba"], include=include)
    assert matcher.push("xaba") == expected
    assert matcher.matched == "aba"


def test_failed_beginning_falls_back_to_a_shorter_one() -> None:
    matcher = StopStringMatcher(["aab"])
    assert [matcher.push(character) for character in "aaab"] == ["", "", "a", ""]
    assert matcher.matched == "aab"
