"""Lengths from a file, `--lengths file:PATH`: a line for each request, its input and its output tokens.

The two are drawn together, so that what they have to do with each other is kept.
"""

from pathlib import Path

from aie_engine import InvalidInputError

__all__ = ["PREFIX", "Pairs", "read_lengths"]

PREFIX = "file:"
_LARGEST = 1_000_000

Pairs = tuple[tuple[int, int], ...]
"""(input tokens, output tokens)."""


def read_lengths(path: Path) -> Pairs:
    """Blank lines and what begins with # are passed over. Raises `InvalidInputError` that names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.", param="lengths") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path} is no text.", param="lengths") from None
    pairs = []
    longest = len(str(_LARGEST))
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not all(
            word.isdecimal() and len(word) <= longest and 1 <= int(word) <= _LARGEST for word in words
        ):
            raise InvalidInputError(
                f"{path} line {number} is {line.strip()[:60]!r}; it must be two lengths in tokens, of the input and of "
                "the output, such as 128 64.",
                param="lengths",
            )
        pairs.append((int(words[0]), int(words[1])))
    if not pairs:
        raise InvalidInputError(f"{path} has no lengths in it.", param="lengths")
    return tuple(pairs)
