"""The front's side of the flight recorder: a ring file into which a worker writes its memory events.

The worker cannot be asked after `kill -9`, nor after the system's out-of-memory killer, which is the case that matters.
What it stored in a mapped file is there all the same.
"""

import logging
import shutil
import tempfile
from pathlib import Path

from aie_tensor import AieError, EventRing, format_events

__all__ = ["FlightRecorder"]

_NUM_SHOWN = 20  # a screenful: what was asked for last, and by whom

_log = logging.getLogger("aie.engine")


class FlightRecorder:
    """Makes the file, in a folder that only this user may enter. Raises `EnvironmentLacksError` where it cannot."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="aie-memory-"))
        self.path = self._folder / "ring"
        try:
            EventRing.create(self.path).close()
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
