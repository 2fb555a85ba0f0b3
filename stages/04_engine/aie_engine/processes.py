"""What all worker processes have in common: their name in a process list, and how their end is told."""

import ctypes
import signal
import sys
from multiprocessing.process import BaseProcess

__all__ = ["EXIT_TIMEOUT_S", "ending", "set_title"]

EXIT_TIMEOUT_S = 2.0  # from a closed pipe to the process's end

_PR_SET_NAME = 15


def set_title(title: str) -> None:
    """What `ps -o comm` and `top` show; only Linux can be asked for that without another library."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode(), 0, 0, 0)


def ending(process: BaseProcess) -> str:
    """How a process whose pipe is closed came to its end."""
    process.join(EXIT_TIMEOUT_S)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
