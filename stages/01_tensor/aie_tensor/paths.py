"""Where things that can be rebuilt or fetched again are kept: compiled kernels and pulled models.

The only module below the command line that reads the environment: a kernel library needs its cache before any
configuration exists.
"""

import os
import sys
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir(override: Path | None = None) -> Path:
    """The cache folder (not created here): `override`, else `$AIE_CACHE`, else `aie` in the user's cache folder.

    That is `$XDG_CACHE_HOME/aie` or `~/.cache/aie` on Linux, `~/Library/Caches/aie` on macOS, `%LOCALAPPDATA%\\aie` on
    Windows.
    """
    if override is not None:
        return override
    if chosen := os.environ.get("AIE_CACHE"):
        return Path(chosen).expanduser()
    return _user_cache() / "aie"


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    # The XDG specification tells programs to ignore a relative path here.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) if os.path.isabs(base) else Path.home() / ".cache"
