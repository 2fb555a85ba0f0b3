"""Everything that is written to standard error, by whomever, line by line to a function.

The server's processes have one standard error between them, and not only our own lines go there: a worker that fails,
a library that warns, the interpreter when it dies. Where each line has to be a JSON object, these have to become one,
too. So the descriptor itself is replaced by a pipe, of which the workers inherit the writing end.
"""

import contextlib
import os
import select
import threading
from collections.abc import Callable

__all__ = ["StderrLines"]

_STDERR = 2
_MAX_LINE_BYTES = 64 * 1024  # what never ends is cut
_JOIN_S = 1.0


class StderrLines:
    """From its making until `close`. take: gets each line as text, without its end; must not raise."""

    def __init__(self, take: Callable[[str], None], *, descriptor: int = _STDERR) -> None:
        self._take = take
        self._descriptor = descriptor
        _open_if_closed(descriptor)
        self._real = os.dup(descriptor)
        reading, writing = os.pipe()
        os.dup2(writing, descriptor)  # inheritable, as standard error is
        self._reading, self._writing = reading, writing
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="aie-stderr", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """To what standard error was. May block and may raise `OSError`."""
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._real, data) :]

    def close(self) -> None:
        """Standard error is what it was. What is in the pipe is still taken; whoever else holds it open is not waited
        for. A second call does nothing."""
        if self._is_closed:
            return
        os.dup2(self._real, self._descriptor)
        self._is_closed = True
        os.write(self._writing, b"\n")  # the reader wakes up, if it has not looked at the flag by itself
        self._thread.join(_JOIN_S)
        os.close(self._writing)
        if not self._thread.is_alive():
            os.close(self._reading)

    def _run(self) -> None:
        rest, poll = b"", select.poll()
        poll.register(self._reading, select.POLLIN)
        with contextlib.suppress(OSError):
            while not self._is_closed or poll.poll(0):
                if not (data := os.read(self._reading, _MAX_LINE_BYTES)):
                    break
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) >= _MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._tell(line)
        self._tell(rest)

    def _tell(self, line: bytes) -> None:
        text = line.rpartition(b"\r")[2] or line.rstrip(b"\r")  # of a line that rewrites itself, its last state
        if text.strip():
            self._take(text.decode("utf-8", "backslashreplace"))


def _open_if_closed(descriptor: int) -> None:
    """Who is started without standard error writes to nobody; and no file of its own gets that number."""
    try:
        os.fstat(descriptor)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != descriptor:
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
