"""The log of a running server: lines on standard error that can never hold the server up.

Who reads standard error is not ours to choose. A pipe whose reader is slow fills up, a disk fills up, a reader goes
away; each would stop every thread that logs, and with the access log that is every thread. So lines go through a
bounded queue to one thread that writes, and when nobody takes them they are dropped and counted. Cost: one `put` per
line.

As JSON every line is an object, also what the workers and the libraries write: standard error itself is read and
wrapped (stderr_lines.py), which keeps them, too, from being held up by who does not read.
"""

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from aie.log_format import json_line
from aie.stderr_lines import StderrLines

__all__ = ["ServiceLog", "json_service_log", "write_to_stderr"]

_MAX_LINES: Final = 4096
_CLOSE_S: Final = 1.0  # how long the last lines get


def write_to_stderr(text: str) -> None:
    """Without Python's buffer: a thread that is stopped inside it would hold its lock when the interpreter ends."""
    if sys.stderr is None:
        return
    try:
        number = sys.stderr.fileno()
    except (OSError, ValueError):  # replaced by something that is no file
        sys.stderr.write(text)
        return
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(number, data) :]


class ServiceLog(logging.Handler):
    """A logging handler, and `line` for text that goes out as it is. `write` may block and may raise `OSError`.

    as_json: that text becomes an object, too; the records are their formatter's business.
    """

    def __init__(
        self, write: Callable[[str], None] = write_to_stderr, *, max_lines: int = _MAX_LINES, as_json: bool = False
    ) -> None:
        super().__init__()
        self._write = write
        self._as_json = as_json
        self.captured: StderrLines | None = None  # closed with this log
        self._lines: queue.Queue[str | None] = queue.Queue(max_lines)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="aie-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put(self.format(record))
        except Exception:
            self.handleError(record)

    def line(self, text: str, level: str = "info", logger: str = "aie.serve") -> None:
        """One line that is no record: as it is, or as an object."""
        self._put(json_line(time.time(), level, logger, text) if self._as_json else text)

    def close(self) -> None:
        """Gives what is queued a moment to leave. A second call does nothing."""
        if self.captured is not None:
            self.captured.close()
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=_CLOSE_S)
            except queue.Full:
                pass  # it never will
            else:
                self._thread.join(_CLOSE_S)
        super().close()

    def _put(self, text: str) -> None:
        """Queues one line; drops it when nobody takes them."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._num_dropped += 1

    def _run(self) -> None:
        while (text := self._lines.get()) is not None:
            try:
                self._write(text + "\n")
                if self._num_dropped:
                    num_dropped, self._num_dropped = self._num_dropped, 0
                    self._write(self._dropped(num_dropped) + "\n")
            except (OSError, ValueError):
                self._num_dropped += 1

    def _dropped(self, number: int) -> str:
        text = f"{number} lines of the log were dropped: nobody took them"
        return json_line(time.time(), "warning", "aie.log", text, {"dropped": number}) if self._as_json else f"({text})"


def json_service_log() -> ServiceLog:
    """All that goes to standard error from now on becomes objects. Whoever calls it closes it."""
    captured: StderrLines
    log = ServiceLog(lambda text: captured.write(text), as_json=True)  # noqa: PLW0108 (it is made only now)
    captured = log.captured = StderrLines(lambda text: log.line(text, "warning", "stderr"))
    return log
