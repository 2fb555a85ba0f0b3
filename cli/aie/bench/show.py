"""What both kinds of load test print."""

import os
import platform

from rich.console import Console
from rich.table import Table

from aie.version import versions

__all__ = ["context", "print_view"]


def print_view(view: Table) -> None:
    """On standard output. On a narrow terminal its lines wrap: a figure without its end would be wrong."""
    console = Console()
    console.width = max(console.width, console.measure(view, options=console.options.update_width(200)).maximum)
    console.print(view)


def context() -> dict[str, object]:
    """What a reader needs to place the figures."""
    return {**versions(), "python": platform.python_version(), "cpus": os.cpu_count()}
