"""One process of the load generator, seen from the one that starts it: its birth, what it tells, and its end."""

import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from aie.bench.generator.channel import Frames, frame
from aie.bench.uninterrupted import uninterrupted

__all__ = ["Process"]

_END_S = 2.0  # that a process may take to end
_READ_BYTES = 1 << 20
# -P: modules of the folder in which somebody happens to be are not for it. This package may be on our path alone.
_WHERE = str(Path(__file__).parents[2])
_WHAT_IT_RUNS = (
    "import sys; sys.path.append(sys.argv[1]); from aie.bench.generator.worker import main; main(int(sys.argv[2]))"
)


class Process:
    """One of the load generator, and our end of its socket."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        self._born_s = time.perf_counter()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # what it writes when it dies; closed in `end`
        try:
            # Its own session: a Ctrl-C at the terminal reaches only us, who end it by closing the socket.
            with uninterrupted():
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _WHAT_IT_RUNS, _WHERE, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._said,
                    start_new_session=True,
                )
        except BaseException:
            self.link.close()
            self._said.close()
            raise
        finally:
            theirs.close()
        self._frames = Frames()
        self.ahead_s = 0.0  # of its clock
        self.fault: str | None = None

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def meet(self, its_clock_s: float) -> None:
        """Between its birth and now its clock said that: the same clock says something in between."""
        now_s = time.perf_counter()
        if not self._born_s <= its_clock_s <= now_s:
            self.ahead_s = its_clock_s - now_s

    def tell(self, kind: str, *rest: Any) -> None:
        """Raises OSError where nobody listens any more."""
        self.link.sendall(frame((kind, *rest)))

    def read(self) -> list[tuple[Any, ...]]:
        """What has come. Raises EOFError where it is dead."""
        try:
            data = self.link.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError
        return self._frames.feed(data)

    def post_mortem(self) -> str:
        """How it ended, in words behind "ended"."""
        if self.fault is not None:
            return f"with an error ({self.fault})"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        if code is not None and code < 0:
            return f"by signal {-code}"
        self._said.seek(0)
        lines = self._said.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
        return f"with code {code}{f' ({lines[-1][:200]})' if lines else ''}"

    def hang_up(self) -> None:
        """It ends when it notices."""
        self.link.close()

    def end(self) -> None:
        """After `hang_up`. Whatever interrupts this, the process is gone."""
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._said.close()
