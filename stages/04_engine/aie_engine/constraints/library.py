"""llguidance, where it is installed: a parser that runs along with an answer and says which tokens may come next."""

import importlib.util
from types import ModuleType

from aie_engine.constraints.errors import ConstraintsUnavailableError

__all__ = ["load_library", "require_library", "to_lark"]

_NAME = "llguidance"


def require_library() -> None:
    """Raises `ConstraintsUnavailableError` where the package is missing. Imports nothing."""
    if importlib.util.find_spec(_NAME) is None:
        raise _missing()


def load_library() -> ModuleType:
    """The package. Raises `ConstraintsUnavailableError`."""
    try:
        import llguidance
    except ImportError as error:
        raise _missing() from error
    return llguidance


def to_lark(grammar: str) -> str:
    """A grammar in Lark's notation, as it stands, or in GBNF's, rewritten. Raises ValueError."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # of its parser, which has no errors of its own
        raise ValueError(f"as GBNF: {error}") from None


def _missing() -> ConstraintsUnavailableError:
    return ConstraintsUnavailableError(
        f"Answers of a given form need the package {_NAME}, which is not installed here; pip install 'aie[structured]' "
        "installs it."
    )
