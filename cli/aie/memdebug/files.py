"""`aie memdebug diff A B` and `aie memdebug replay LOG`: what was written down, looked at later."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from aie.console import check_writable, write_json
from aie.memdebug.show import difference, growth_json, say

__all__ = ["diff", "replay"]


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="Snapshot taken first (--snapshot).")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Snapshot taken later.")],
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the differences to this file.")] = None,
) -> None:
    """Compare two snapshots: what is held more, by which line of code, and how much per 1,000 requests.

    Exit code 0 whatever grew: two points make no trend. See --fail-if-growth of `aie memdebug`.
    """
    from aie_tensor.memdebug import diff as changes_between
    from aie_tensor.memdebug import load_snapshot, totals

    if json_path is not None:
        check_writable(json_path)
    before, after = load_snapshot(a), load_snapshot(b)
    say(difference(before, after))
    if json_path is not None:
        changes = changes_between(before, after)
        write_json(
            json_path,
            {"totals": asdict(totals(before, after)), "groups": [growth_json(change) for change in changes]},
        )


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Log of allocations (--record, aie serve --memory-log).")],
    allow_cut: Annotated[
        bool, typer.Option("--allow-cut", help="Take a log whose writer was killed in its last line.")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the table to this file.")] = None,
) -> None:
    """Replay a log of allocations against other allocators: what each would have wasted, and its time per call."""
    raise NotImplementedError
