"""Steps that clean a text before it becomes tokens: text in, text out."""

import re
import unicodedata
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

__all__ = ["TextStep"]

_WHITE: Final = re.compile(r"\s+")


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step"):
    """`step = "…"` in the file names the class."""


class Strip(_Step, tag="strip", frozen=True):
    """No white space at either end."""

    def __call__(self, text: str) -> str:
        return text.strip()


class Unicode(_Step, tag="unicode", frozen=True):
    """One way to write each character; NFKC also makes "ﬁ" two letters and full-width digits plain ones."""

    form: Literal["NFC", "NFKC", "NFD", "NFKD"] = "NFC"

    def __call__(self, text: str) -> str:
        return unicodedata.normalize(self.form, text)


class Lower(_Step, tag="lower", frozen=True):
    """Lower case, for models that were trained on nothing else and whose tokenizer does not see to it."""

    def __call__(self, text: str) -> str:
        return text.lower()


class Collapse(_Step, tag="collapse", frozen=True):
    """Each run of white space becomes one space."""

    def __call__(self, text: str) -> str:
        return _WHITE.sub(" ", text)


class Cut(_Step, tag="cut", frozen=True):
    """The first `chars` characters; the rest is dropped without a word, as a tokenizer's truncation does."""

    chars: Annotated[int, msgspec.Meta(ge=1)]

    def __call__(self, text: str) -> str:
        return text[: self.chars]


TextStep: TypeAlias = Strip | Unicode | Lower | Collapse | Cut
