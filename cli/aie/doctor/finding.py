"""One thing looked at: what was found, and what to change."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["MORE_TIME", "Finding", "Level", "as_json", "show"]

MORE_TIME = "again on a quieter machine, and without --quick"  # where a check had too little to judge by

Level = Literal["ok", "note", "bad"]

_MARKS: Mapping[Level, str] = {"ok": "ok  ", "note": "note", "bad": "BAD "}


@dataclass(frozen=True, slots=True)
class Finding:
    """`level`: ok, note (works, could be better) or bad (serving fails, or serves badly)."""

    what: str
    level: Level
    text: str  # the figure first, where something was measured
    change: str = ""  # what to do about it; empty where nothing need be done
    figures: Mapping[str, object] = field(default_factory=dict)  # the same for programs; JSON


def show(findings: Iterable[Finding]) -> None:
    """On standard output, what to change on a line of its own; on a terminal no line is broken within a word."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for finding in findings:
        print(_line(f"{_MARKS[finding.level]} {finding.what}: {finding.text}", width))
        if finding.change:
            print(_line(f"     → {finding.change}", width))
    sys.stdout.flush()


def _line(text: str, width: int | None) -> str:
    if width is None:
        return text
    return textwrap.fill(text, max(40, width), subsequent_indent=" " * 7, break_on_hyphens=False)


def as_json(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """For `--json`."""
    return [
        {"what": finding.what, "level": finding.level, "text": finding.text}
        | ({"change": finding.change} if finding.change else {})
        | ({"figures": dict(finding.figures)} if finding.figures else {})
        for finding in findings
    ]
