"""Plots for a terminal, in plain characters: points in a plane, and bars."""

from collections.abc import Mapping, Sequence
from math import floor, log10

__all__ = ["bars", "scatter"]

MARKS = "ox+*#@%&"
Point = tuple[float, float]


def scatter(
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str,
    y_label: str,
    width: int = 60,
    height: int = 12,
) -> list[str]:
    """Each series with a mark of its own; y on a logarithmic scale, since latencies span decades. x from 0.

    Points whose y is not above 0 are left out. A cell that two series share shows the later one.
    """
    marked = [
        (mark, x, y)
        for mark, points in zip(_marks(len(series)), series.values(), strict=True)
        for x, y in points
        if y > 0
    ]
    if not marked:
        return [f"({y_label}: nothing to plot)"]
    right = max(x for _, x, _ in marked) or 1.0
    low, high = (pick(log10(y) for _, _, y in marked) for pick in (min, max))
    low, high = floor(low * 10) / 10, max(high, low + 0.3)
    cells = [[" "] * width for _ in range(height)]
    for mark, x, y in marked:
        column = min(width - 1, round(x / right * (width - 1)))
        row = min(height - 1, round((log10(y) - low) / (high - low) * (height - 1)))
        cells[height - 1 - row][column] = mark
    lines = [y_label]
    for index, row_cells in enumerate(cells):
        value = 10 ** (low + (high - low) * (height - 1 - index) / (height - 1))
        tick = f"{_three_digits(value):>9} ┤" if index % 3 == 0 or index == height - 1 else f"{'':>9} │"
        lines.append(tick + "".join(row_cells).rstrip())
    lines.append(f"{'':>9} └" + "─" * width)
    lines.append(f"{'':>11}0{f'{right:.4g} {x_label}':>{width - 1}}")
    names = "   ".join(f"{mark} {name}" for mark, name in zip(_marks(len(series)), series, strict=True))
    return [*lines, f"{'':>11}{names}"]


def bars(counts: Mapping[str, float], *, width: int = 40) -> list[str]:
    """One bar per entry, the longest `width` characters wide."""
    longest = max(counts.values(), default=0)
    room = max((len(name) for name in counts), default=0)
    return [
        f"{name:>{room}} │{'█' * round(width * count / longest) if longest else ''} {count:g}"
        for name, count in counts.items()
    ]


def _marks(number: int) -> list[str]:
    return [MARKS[index % len(MARKS)] for index in range(number)]


def _three_digits(value: float) -> str:
    """As people write it: 6230, not 6.23e+03."""
    return f"{float(f'{value:.3g}'):.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
