"""`aie memdebug`: who holds memory, what keeps growing, and which line of code asked for it.

routing        the words of the command line: subcommand, program after --, or flags that choose the work
command        the flags
load           how much traffic, and what is written down of a run
traffic        unkind requests, and a window of them that is always full
verdict        from snapshots to "this leaks"
local_run      traffic on an engine in this process
remote         a look into a live server
remote_run     traffic over HTTP
script         a person's own program, with every pool watched
drill          a planted leak, and how it is found
watch, files   the subcommands: watch; diff and replay
show, outputs  what is printed, and the files that are written
"""

import typer

from aie.memdebug.command import memdebug
from aie.memdebug.routing import Router

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("memdebug", cls=Router, short_help="Run unkind traffic and name what leaks.")(memdebug)
