"""`aie bench` is a command, but its first word may be another one: `aie bench compare A B`.

Typer knows commands and groups of commands, and this is both: the load test has no word of its own. So the command
looks at its first word before the words are parsed, and a subcommand takes over.
"""

from collections.abc import Callable
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand

__all__ = ["Router"]


class Router(TyperCommand):
    """Hands over to a subcommand if the first word names one."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args and args[0] in _SUBCOMMANDS:
            command = _SUBCOMMANDS[args[0]]()
            inner = typer.Typer(rich_markup_mode=None, add_completion=False)
            inner.command(args[0])(command)
            made = typer.main.get_command(inner)
            return made.make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def _compare() -> Callable[..., None]:
    """Made when it is asked for: the command line starts faster without what it imports."""
    from aie.bench.compare_command import compare

    return compare


_SUBCOMMANDS: dict[str, Callable[[], Callable[..., None]]] = {"compare": _compare}
