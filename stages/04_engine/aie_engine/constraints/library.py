"""llguidance, where it is installed: a parser that runs along with an answer and says which tokens may come next."""

import importlib.util
from types import ModuleType

from aie_engine.constraints.errors import ConstraintsUnavailableError

__all__ = ["load_library", "require_library"]

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


def _missing() -> ConstraintsUnavailableError:
    return ConstraintsUnavailableError(
        f"Answers of a given form need the package {_NAME}, which is not installed here; pip install 'aie[structured]' "
        "installs it."
    )
