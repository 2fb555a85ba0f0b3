"""200 sentences of mixed length, the same on every machine: from none to more words than a sentence encoder reads."""

import random

__all__ = ["sentences"]

_TEXT = (
    "the a of and harbour winter engine memory letter quiet green answer river market doctor paper train signal "
    "garden number wrote measured carries between because slowly unbelievably seventeen photosynthesis Zürich naïve "
    "café 東京 данные résumé GPU x86-64 3.14 1,000 $25 don't state-of-the-art user@example.org #42 ☂ 😀 [MASK] "
    "antidisestablishmentarianism"
)
_ENDS = (".", "?", "!", " …", "", ", or not?", "\n\nSecond paragraph.")
_SPECIAL = [
    "",
    " ",
    "Hello",
    "hello",
    "a b",
    "ÀÉÎÕÜ",
    "😀😀😀",
    "x" * 300,
    "[CLS] inside [SEP] a text",
    "tab\tand\x00zero",
]


def sentences() -> list[str]:
    """Oddities first, then random words: mostly short, some of several hundred words."""
    draw = random.Random(20)
    words, made = _TEXT.split(), list(_SPECIAL)
    while len(made) < 200:
        longest = draw.choice([3, 6, 12, 12, 24, 50]) if len(made) % 90 else 700
        count = draw.randint(1, longest) if longest < 700 else draw.randint(400, longest)
        text = " ".join(draw.choice(words) for _ in range(count))
        made.append(text.capitalize() + draw.choice(_ENDS))
    return made
