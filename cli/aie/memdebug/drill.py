"""`aie memdebug --drill NAME`: one of four classic leaks in a scratch engine, and how it is found."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from aie.console import format_bytes, write_json
from aie.memdebug.show import chain, growth_json, print_growth, say, screen, wrapped
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie_tensor.memdebug.drills import DrillReport

__all__ = ["run_named_drill"]

_MAX_CHAINS = 3


def run_named_drill(name: str, *, requests: int | None, seed: int, json_path: Path | None) -> bool:
    """Runs, prints and writes. True when nothing leaks, which after a drill would be a fault of ours.

    Raises `InvalidInputError` for a name that is no drill's.
    """
    from aie_tensor.memdebug.drills import DRILLS, run_drill

    if name not in DRILLS:
        known = "; ".join(f"{drill.name} ({drill.title})" for drill in DRILLS.values())
        raise InvalidInputError(f"There is no drill {name!r}. There are: {known}.", param="drill")
    report = run_drill(name, seed=seed) if requests is None else run_drill(name, num_requests=requests, seed=seed)
    say(screen(report.snapshots[-1]))
    _print_report(report)
    for paragraph in DRILLS[name].explain.splitlines():
        say(f"\n{wrapped(paragraph)}")
    _print_outcome(report)
    if json_path is not None:
        write_json(json_path, _as_json(report))
    return not report.growing


def _print_report(report: "DrillReport") -> None:
    for before, after in itertools.pairwise(report.snapshots):
        grown = sum(group.nbytes for group in after.groups) - sum(group.nbytes for group in before.groups)
        num_requests = after.num_requests - before.num_requests
        say(f"Held after {after.num_requests} requests: {format_bytes(grown)} more than {num_requests} requests ago.")
    print_growth("LEAKED (grew in each interval)", report.growing)
    for title, chains in (("Who holds one of them", report.held_by), ("Held in a reference cycle", report.in_cycles)):
        if chains:
            say(f"\n{title}:")
        for text in chains[:_MAX_CHAINS]:
            say(chain(text))
        if len(chains) > _MAX_CHAINS:
            say(f"  … and {len(chains) - _MAX_CHAINS} more like these.")


def _print_outcome(report: "DrillReport") -> None:
    named = "no line" if report.named is None else f"{report.named[0]}:{report.named[1]}"
    if report.planted is None:
        return
    planted = f"{report.planted[0]}:{report.planted[1]}"
    if report.found:
        say(f"\nFound: the leak is at {named}, which is where it was planted.")
    else:
        say(f"\nNOT FOUND: the leak was planted at {planted}; the report names {named}.")


def _as_json(report: "DrillReport") -> dict[str, object]:
    return {
        "drill": report.name,
        "requests": report.num_requests,
        "found": report.found,
        "named": report.named,
        "planted": report.planted,
        "held_by": list(report.held_by),
        "in_cycles": list(report.in_cycles),
        "leaks": [growth_json(change) for change in report.growing],
        "snapshots": [snapshot.to_json() for snapshot in report.snapshots],
    }
