"""Guesses at what a text says next, out of the text itself: prompt lookup.

Answers repeat what the prompt or they themselves have said: names, quotations, code, lists. So the text's end is looked
for earlier in the text, and what followed there is the guess. The model checks all guessed tokens in one step, at the
price of a longer step, and no second model is needed. (Saxena 2023, "Prompt Lookup Decoding"; checking several guessed
tokens at once is Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding".)

A step must not pay for the length of the text, so nothing is ever searched through:

- Every pair of neighbouring tokens is in a dictionary with the position behind its latest occurrence, and each such
  position remembers the one before it. At most `_NUM_TRIED` of them are tried, latest first; the one wins whose past
  agrees furthest with the text's end.
- A match that goes on is kept: while the tokens that come are those of the matched place, it needs no new search.

How often a guess comes true depends on the text, and within a text on how far the past agrees: two tokens agree by
chance, ten rarely do. So each request keeps a record of both kinds, which says how many guesses a match is worth.

Cost: O(1) per token to index, O(1) per guess. The index is made when it is first asked for, since a request whose
guesses do not pay never asks.
"""

from collections.abc import Sequence

from aie_engine.batch import Int32Array

__all__ = ["Guessing", "PromptLookup"]

_NUM_TRIED = 8
_MAX_COMPARED = 32  # tokens of the past; longer agreement makes no guess better

_FEW = 5  # tokens that agree: fewer make a chance match
_FIRST_HOPES = (0.4, 0.7)  # of a request whose guesses were never checked: after a chance match, after a longer one
_PACE = 1 / 8  # of the newest outcome in a hope
_RECOVERY = 1 / 512  # per chance not taken: who was wrong for long tries again now and then


class PromptLookup:
    """The text of one request, prompt and answer, which only grows."""

    __slots__ = ("_before", "_behind", "_source", "_text", "agreement")

    def __init__(self) -> None:
        self._text: list[int] = []
        self._behind: dict[tuple[int, int], int] = {}  # pair of tokens → position behind its latest occurrence
        self._before: list[int] = []  # position → the one behind the previous occurrence of the same pair; -1: none
        self._source = -1  # where the match goes on, which is where the guess begins; -1: to be searched for
        self.agreement = 0  # tokens of the past on which the match rests; those beyond some thirty are not looked at

    def __len__(self) -> int:
        """Tokens that it has read."""
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        """What the text goes on with."""
        text, behind, before = self._text, self._behind, self._before
        for token in tokens:
            position = len(text)
            if position >= 2:  # only now, with something behind it, is the pair of use to a guess
                pair = (text[-2], text[-1])
                before.append(behind.get(pair, -1))
                behind[pair] = position
            else:
                before.append(-1)
            text.append(token)
            if self._source >= 0 and text[self._source] == token:
                self._source += 1
                self.agreement += 1
            else:
                self._source = -1

    def has_match(self) -> bool:
        """Whether the last two tokens were neighbours before."""
        if self._source < 0:
            self._source = self._search()
        return self._source >= 0

    def guess(self, num_tokens: int) -> list[int]:
        """`num_tokens` tokens that may come next; none without a match."""
        if not self.has_match():
            return []
        text = self._text
        guessed = text[self._source : self._source + num_tokens]
        period = len(text) - self._source
        while len(guessed) < num_tokens:  # the matched place reaches into the end itself: the text runs in a circle
            guessed.append(guessed[len(guessed) - period])
        return guessed

    def _search(self) -> int:
        text = self._text
        if len(text) < 3:
            return -1
        candidate = self._behind.get((text[-2], text[-1]), -1)
        best, longest = candidate, -1
        for _ in range(_NUM_TRIED):
            if candidate < 0:
                break
            agreement = self._agreement(candidate)
            if agreement > longest:
                best, longest = candidate, agreement
            candidate = self._before[candidate]
        self.agreement = longest + 2
        return best

    def _agreement(self, position: int) -> int:
        """How many tokens before the pair in front of `position` are those before the text's last pair."""
        text = self._text
        here, there = position - 3, len(text) - 3
        most = min(_MAX_COMPARED, here + 1)
        for num in range(most):
            if text[here - num] != text[there - num]:
                return num
        return most


class Guessing:
    """One request's guesses, and how they fared."""

    __slots__ = ("_kind", "_lookup", "hopes")

    def __init__(self) -> None:
        self._lookup = PromptLookup()
        self._kind = 0  # of the match that the last guesses came from
        # The probability that a guess comes true, given that those before it did: after a chance match, after a longer.
        self.hopes = list(_FIRST_HOPES)

    def guess(self, tokens: Int32Array, num_tokens: int, most: int, price: float) -> list[int]:
        """What may follow the first `num_tokens` of `tokens`, all of them known: at most `most` guesses, each of which
        promises to come true with a probability of at least `price`."""
        if price > self.hopes[0] and price > self.hopes[1]:
            self._recover(0)
            self._recover(1)
            return []
        lookup = self._lookup
        lookup.extend(tokens[len(lookup) : num_tokens].tolist())
        if not lookup.has_match():
            return []
        kind = self._kind = int(lookup.agreement >= _FEW)
        hope = promise = self.hopes[kind]
        num = 0
        while num < most and promise >= price:
            num += 1
            promise *= hope
        if num == 0:
            self._recover(kind)
            return []
        return lookup.guess(num)

    def _recover(self, kind: int) -> None:
        self.hopes[kind] += (_FIRST_HOPES[kind] - self.hopes[kind]) * _RECOVERY

    def settle(self, num_right: int, num_checked: int) -> None:
        """Of the last guesses so many were looked at, and so many were right; at most one was wrong, the last."""
        hope = self.hopes[self._kind]
        for _ in range(num_right):
            hope += (1 - hope) * _PACE
        if num_checked > num_right:
            hope -= hope * _PACE
        self.hopes[self._kind] = hope
