"""Stop strings, found across token boundaries, without ever showing a character that turns out to belong to one.

One Knuth–Morris–Pratt automaton per stop string reads the text character by character. Its state is how many
characters of the stop string the text read so far ends with, so at any moment

    held back  =  the longest state of all automata
    a match    =  an automaton that reached its end

The first match in reading order wins; if two end at the same character, the longer. Because only characters matter,
the answer does not depend on how the text was cut into tokens. Cost: one step per character and stop string (Knuth,
Morris, Pratt 1977).
"""

from collections.abc import Sequence

__all__ = ["StopStringMatcher"]


class StopStringMatcher:
    """Feed text with `push`; `matched` is the stop string that ended it. Pushing after a match is a bug."""

    __slots__ = ("_automata", "_held", "_include", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        assert all(stops), f"an empty stop string matches everywhere: {stops!r}"
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._include = include  # whether the stop string itself belongs to the output
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The characters that are now certain. On a match: those before it (with `include`: and the match)."""
        assert self.matched is None, f"text after the stop string {self.matched!r}"
        if not self._automata:
            return text
        seen = self._held + text
        offset = len(self._held)
        for index, character in enumerate(text):
            matches = [automaton for automaton in self._automata if automaton.step(character)]
            if matches:
                self.matched = matches[0].pattern
                end = offset + index + 1
                self._held = ""
                return seen[: end if self._include else end - len(self.matched)]
        num_held = max(automaton.state for automaton in self._automata)
        self._held = seen[len(seen) - num_held :]
        return seen[: len(seen) - num_held]

    def finish(self) -> str:
        """The text ended by itself: what was held back is ordinary text after all."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """`state` characters of `pattern` are at the end of what was read."""

    __slots__ = ("_fallback", "pattern", "state")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.state = 0
        self._fallback = _fallbacks(pattern)

    def step(self, character: str) -> bool:
        pattern, state = self.pattern, self.state
        while state and pattern[state] != character:
            state = self._fallback[state]
        if pattern[state] == character:
            state += 1
        self.state = state
        return state == len(pattern)


def _fallbacks(pattern: str) -> list[int]:
    """`table[n]`: length of the longest proper prefix of `pattern[:n]` that is also its suffix."""
    table = [0] * (len(pattern) + 1)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length]
        if pattern[index] == pattern[length]:
            length += 1
        table[index + 1] = length
    return table
