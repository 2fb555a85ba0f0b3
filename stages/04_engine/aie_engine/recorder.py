"""The front's side of the flight recorder: a ring file into which a worker writes its memory events.

The worker cannot be asked after `kill -9`, nor after the system's out-of-memory killer, which is the case that matters.
What it stored in a mapped file is there all the same. A front that is killed leaves its file, too: each holds a lock on
its folder, which the system takes away with the process, and the next front deletes the folders that nobody locks.
"""

import logging
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from aie_tensor import AieError, EventRing, format_events

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # a system without: nothing is locked there, and nothing is taken for left behind
    flock = None  # type: ignore[assignment]

__all__ = ["FlightRecorder"]

_NUM_SHOWN = 20  # a screenful: what was asked for last, and by whom
_PREFIX = "aie-memory-"
_FILE = "ring"
_MIN_AGE_S = 60.0  # a younger folder may be another front's that has not locked it yet

_log = logging.getLogger("aie.engine")


class FlightRecorder:
    """Makes the file, in a folder that only this user may enter. Raises `EnvironmentLacksError` where it cannot."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _locked(self._folder)
        self.path = self._folder / _FILE
        try:
            EventRing.create(self.path).close()
            _sweep(self._folder.parent)
        except BaseException:
            self.remove()
            raise

    def last_events(self) -> tuple[str, ...]:
        """The last events, a line each, oldest first; none where the file cannot be read."""
        try:
            return tuple(format_events(EventRing.read(self.path), _NUM_SHOWN))
        except (AieError, OSError) as error:
            _log.warning("the memory events of a worker that died cannot be read: %s", error)
            return ()

    def remove(self) -> None:
        """Delete the file and its folder; again is harmless."""
        shutil.rmtree(self._folder, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the lock on `folder`; None where that cannot be had. No child inherits it."""
    if flock is None:
        return None
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except OSError:  # somebody holds it, or the file system knows no locks
        os.close(lock)
        return None
    return lock


def _sweep(parent: Path) -> None:
    """Delete what fronts of this user left that were killed. Nothing but a ring is ever deleted."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _MIN_AGE_S:
                continue
            lock = _locked(folder)
            if lock is None:
                continue
            try:
                (folder / _FILE).unlink(missing_ok=True)
                folder.rmdir()
            finally:
                os.close(lock)
