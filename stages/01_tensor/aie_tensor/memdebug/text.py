"""The means of the reports: numbers for people, bars, and lines that fit a screen and cannot harm a terminal."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Style", "format_bytes", "format_percent", "format_seconds"]

_EIGHTHS = " ▏▎▍▌▋▊▉"
# What the reports say in Unicode, and the same where a terminal or a log file takes ASCII only.
_TO_ASCII = str.maketrans("µ–−×·∙→←…≥█▓░▒", "u--x|.><~>#%:~")


@dataclass(frozen=True, slots=True)
class Style:
    """How to draw: `width` in characters, `unicode` False for plain ASCII."""

    width: int = 100
    unicode: bool = True

    def bar(self, fraction: float, cells: int) -> str:
        """A bar of `cells` characters, filled from the left to `fraction` (0–1). What is not nothing is drawn."""
        fraction = min(max(fraction, 0.0), 1.0)
        if not self.unicode:
            full = max(round(fraction * cells), fraction > 0)
            return "#" * full + "." * (cells - full)
        eighths = max(round(fraction * cells * 8), fraction > 0)
        full, rest = divmod(eighths, 8)
        drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
        return drawn + " " * (cells - len(drawn))

    def wrap(self, text: str, indent: str) -> list[str]:
        """Prose in as many lines as it needs."""
        return textwrap.wrap(text, self.width, initial_indent=indent, subsequent_indent=indent + "  ")

    def fit(self, lines: Sequence[str]) -> str:
        """The lines as one text: each cut to the width, nothing in it that a terminal would take for a command."""
        return "\n".join(self._fit(line) for line in lines) + "\n"

    def _fit(self, line: str) -> str:
        line = "".join(letter if letter.isprintable() else "?" for letter in line).rstrip()
        if not self.unicode:
            line = line.translate(_TO_ASCII).encode("ascii", "replace").decode()
        if len(line) <= self.width:
            return line
        return line[: self.width - 1] + ("…" if self.unicode else "~")


def format_bytes(nbytes: float) -> str:
    """1536 → `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1023.95:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def format_percent(part: float, whole: float) -> str:
    """`4.7 %`; a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def format_seconds(seconds: float) -> str:
    """`0.4 s`, `41 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for limit, unit, size, digits in (
        (9.95, "s", 1, 1),
        (99.5, "s", 1, 0),
        (5970, "min", 60, 0),
        (172_000, "h", 3600, 1),
    ):
        if seconds < limit:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86400:.1f} d"
