"""Line charts as SVG, to be put into a page as they are: no script, no font or file from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

__all__ = ["Series", "line_chart"]

Series = Mapping[str, Sequence[tuple[float, float, str]]]
"""Name → (x, y, what is said of the point when a pointer rests on it)."""

_COLOURS = ("#2f6fde", "#d9622b", "#2e9e5b", "#a14fc4", "#c2408a", "#7d8a2e", "#1a9aa8", "#8a6d4a")
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 30, 44


def line_chart(series: Series, *, x_label: str, y_label: str, log_y: bool = False) -> str:
    """Points joined in their order. x from 0. log_y: latencies span decades; then what is not above 0 is left out."""
    drawn = {name: [one for one in points if not log_y or one[1] > 0] for name, points in series.items()}
    everything = [one for points in drawn.values() for one in points]
    if not everything:
        return ""
    x_ticks = _ticks(max(x for x, _, _ in everything))
    ys = [y for _, y, _ in everything]
    y_ticks = _decades(min(ys), max(ys)) if log_y else _ticks(max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        low, high = y_ticks[0], y_ticks[-1]
        part = log10(y / low) / log10(high / low) if log_y else y / high
        right, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + right * x / x_ticks[-1], _HEIGHT - _BOTTOM - down * part

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(y_label)} against {escape(x_label)}">'
    ]
    for y in y_ticks:
        parts += _grid(place(0, y), place(x_ticks[-1], y), _number(y), is_row=True)
    for x in x_ticks:
        parts += _grid(place(x, y_ticks[0]), place(x, y_ticks[-1]), _number(x), is_row=False)
    for index, (name, points) in enumerate(drawn.items()):
        parts += _line(name, [(*place(x, y), title) for x, y, title in points], index)
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "middle"))
    parts.append(_text(8, 14, y_label, "start"))
    return "".join([*parts, "</svg>"])


def _line(name: str, points: Sequence[tuple[float, float, str]], index: int) -> list[str]:
    colour = _COLOURS[index % len(_COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
    parts += [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{escape(title)}</title></circle>'
        for x, y, title in points
        if title
    ]
    at = _TOP + 12 + 16 * index
    parts.append(f'<rect x="{_WIDTH - _RIGHT + 12}" y="{at - 8}" width="9" height="9" fill="{colour}"/>')
    return [*parts, _text(_WIDTH - _RIGHT + 26, at, name, "start")]


def _grid(begin: tuple[float, float], end: tuple[float, float], label: str, *, is_row: bool) -> list[str]:
    line = (
        f'<line x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        'stroke="currentColor" stroke-opacity="0.15"/>'
    )
    text = (
        _text(begin[0] - 6, begin[1] + 4, label, "end") if is_row else _text(begin[0], begin[1] + 16, label, "middle")
    )
    return [line, text]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" fill="currentColor">{escape(text)}</text>'
    )


def _ticks(largest: float) -> list[float]:
    """From 0 in steps of 1, 2 or 5 times a power of ten, four to nine of them, the last not below `largest`."""
    if largest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(largest / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if largest / (factor * power) <= 8)
    return [step * index for index in range(ceil(largest / step - 1e-9) + 1)]


def _decades(smallest: float, largest: float) -> list[float]:
    """1, 2, 5, 10, 20, …: those around the values."""
    steps = [factor * 10.0**power for power in range(floor(log10(smallest)), ceil(log10(largest)) + 1)
             for factor in (1, 2, 5)]  # fmt: skip
    low = max((step for step in steps if step <= smallest), default=steps[0])
    high = min((step for step in steps if step >= largest and step > low), default=steps[-1])
    return [step for step in steps if low <= step <= high]


def _number(value: float) -> str:
    return f"{value:.10g}" if value < 10_000 else f"{value:,.0f}".replace(",", " ")
