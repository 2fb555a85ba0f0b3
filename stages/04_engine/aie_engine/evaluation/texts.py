"""The built-in texts: short pieces of plain English in different registers, so that no single style decides."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

__all__ = ["builtin_texts"]

_FOLDER = Path(__file__).parent / "texts"


@lru_cache(maxsize=1)
def builtin_texts() -> Mapping[str, str]:
    """Name → text: an essay on servers, a story at sea, a recipe, code with comments, questions with answers and a
    letter."""
    return MappingProxyType({path.stem: path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.txt"))})
