"""`aie memdebug diff A B` and `aie memdebug replay LOG`: what was written down, looked at later."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import check_writable, write_json
from aie.memdebug.show import difference, growth_json, policy_table, say
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie_tensor.memdebug import LoggedEvent

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
    budget: Annotated[
        str | None, typer.Option(help="All the memory that there is, such as 512MiB: who gets through? [no end]")
    ] = None,
    allow_cut: Annotated[
        bool, typer.Option("--allow-cut", help="Take a log whose writer was killed in its last line.")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the table to this file.")] = None,
) -> None:
    """Replay a log of allocations against other allocators: what each wastes, and its time per call.

    Size classes (1, 2, 4 and 8 per doubling), a cache of exact sizes, best fit with merging, buddies, and the system
    each time. No memory is taken for it.
    """
    from aie.settings import parse_bytes
    from aie_tensor.memdebug.policies import compare_policies

    limit_bytes = None if budget is None else parse_bytes(budget, param="budget")
    if json_path is not None:
        check_writable(json_path)
    events = _events(log, allow_cut=allow_cut)
    results = compare_policies(events, limit_bytes=limit_bytes)
    say(policy_table(results))
    if json_path is not None:
        write_json(json_path, {"log": str(log), "events": len(events), "policies": [asdict(row) for row in results]})


def _events(log: Path, *, allow_cut: bool) -> "list[LoggedEvent]":
    from aie_tensor.memdebug import read_log

    try:
        return read_log(log, allow_cut=allow_cut)
    except InvalidInputError as error:
        # The reader knows nothing of flags; its sentence is completed by what can be typed.
        if "cut off in line" not in str(error) or allow_cut:
            raise
        raise InvalidInputError(f"{str(error).rstrip('.')}, with --allow-cut.") from None
