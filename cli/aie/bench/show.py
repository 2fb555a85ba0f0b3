"""What both kinds of load test print."""

import os
import platform
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from aie.version import versions

__all__ = ["context", "print_view", "printable", "shown"]


def print_view(view: Table) -> None:
    """On standard output. On a narrow terminal its lines wrap: a figure without its end would be wrong."""
    console = Console()
    console.width = max(console.width, console.measure(view, options=console.options.update_width(200)).maximum)
    console.print(view)


def shown(show: Callable[[], None]) -> OSError | None:
    """Prints what `show` prints. A reader who went away misses it; any other error is given back, so that the files of
    a long measurement are written before it ends the program."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        return None
    except SystemExit as end:  # of rich, when the reader went away
        if not isinstance(end.__context__, BrokenPipeError):
            raise
    except OSError as error:
        return error
    return None


def printable(text: str) -> str:
    """What a server calls itself, in a line that does nothing to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def context() -> dict[str, object]:
    """What a reader needs to place the figures."""
    return {**versions(), "python": platform.python_version(), "cpus": os.cpu_count()}
