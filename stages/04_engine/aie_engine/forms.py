"""Guesses at an answer that must have a form.

Where the form leaves no choice, the next tokens are known before the model has read any of them: the names of a
schema's fields, the quotes and colons between them. Such guesses always come true. Elsewhere the text itself is asked,
as for any answer, up to the first token that the form forbids. Either way a guess is checked as any other: behind each
of them the model's row is masked with what the form allows there, and drawn with the number of its own position.
"""

from aie_engine.batch import Int32Array
from aie_engine.constraints import ConstrainedAnswer
from aie_engine.drafting import Guessing

__all__ = ["FormGuessing"]


class FormGuessing:
    """In place of `Guessing`, for one request whose answer follows `constraint`."""

    __slots__ = ("_are_forced", "_constraint", "_lookup")

    def __init__(self, constraint: ConstrainedAnswer) -> None:
        self._constraint = constraint
        self._lookup = Guessing()
        self._are_forced = False  # the last guesses

    def guess(self, tokens: Int32Array, num_tokens: int, most: int, price: float) -> list[int]:
        """As `Guessing.guess`."""
        forced = self._constraint.forced()
        self._are_forced = bool(forced)
        if forced:
            return forced[:most]
        guesses = self._lookup.guess(tokens, num_tokens, most, price)
        return guesses[: self._constraint.num_allowed(guesses)] if guesses else guesses

    def settle(self, num_right: int, num_checked: int) -> None:
        """As `Guessing.settle`. What the form forced says nothing of how the text repeats itself."""
        if not self._are_forced:
            self._lookup.settle(num_right, num_checked)
