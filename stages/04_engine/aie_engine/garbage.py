"""What is left of engines that were closed while the process goes on, and how it is given back.

`build_engine` freezes what lives then, so that no collection during a step walks over it. What is frozen is freed like
everything else when its last reference goes, but a cycle among it is never found again. So whoever closes an engine has
to look for its cycles once, here. And what the C library has been given back it keeps, in holes between what others
hold: asked to, it returns whole pages to the system.
"""

import ctypes
import gc
import sys
from functools import lru_cache

__all__ = ["collect_closed_engines", "freeze_what_lives"]


def freeze_what_lives() -> None:
    """What a server has loaded when it begins to serve lives as long as it does: no later collection, during which
    every thread stands still, need walk over it."""
    gc.collect()
    gc.freeze()


def collect_closed_engines() -> None:
    """Free what closed engines left behind; costs one full collection, in which every thread stands still, where an
    engine ran in this process, and some milliseconds elsewhere."""
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
        gc.freeze()
    library = _c_library()
    if library is not None:
        library.malloc_trim(0)


@lru_cache(maxsize=1)
def _c_library() -> ctypes.CDLL | None:
    """glibc, where it is one: others have no `malloc_trim`."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
