"""Python's garbage collector around engines that come and go.

`build_engine` freezes what lives then, so that no collection during a step walks over it. What is frozen is freed like
everything else when its last reference goes, but a cycle among it is never found again. So whoever closes an engine
while the process goes on has to look for its cycles once, here.
"""

import gc

__all__ = ["collect_closed_engines"]


def collect_closed_engines() -> None:
    """Free what closed engines left behind; costs one full collection, in which every thread stands still. Does nothing
    in a process in which no engine ran."""
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
        gc.freeze()
