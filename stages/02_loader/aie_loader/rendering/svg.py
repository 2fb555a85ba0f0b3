"""A graph as a picture, without any other program: `aie load MODEL --graph-svg graph.svg`.

The layout is the simplest that is readable. A box stands on the level of its longest way from an input, so arrows point
down; within a level boxes are ordered by the mean place of what they read (the barycentre rule of Sugiyama, Tagawa and
Toda 1981), which keeps most arrows from crossing. An arrow that skips levels passes them beside the boxes.
"""

from collections import defaultdict
from xml.sax.saxutils import escape

from aie_loader.graph import Graph
from aie_loader.rendering.elements import Box, drawing

__all__ = ["render_svg"]

_CHAR, _LINE, _PADDING = 6.2, 13, 8  # pixels: width of a character at 10 px, height of a line, space inside a box
_GAP_X, _GAP_Y = 24, 34


def render_svg(graph: Graph, prefix: str = "") -> str:
    """A complete SVG document; with `prefix` only the nodes whose names start so, and what they read."""
    picture = drawing(graph, prefix)
    places = _place(picture.boxes, picture.arrows)
    width = max((x + w for x, _, w, _ in places.values()), default=0) + _GAP_X
    height = max((y + h for _, y, _, h in places.values()), default=0) + _GAP_X
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="10">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7a869a"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
    ]
    parts += [_arrow(places[source], places[target]) for source, target in picture.arrows]
    parts += [_box(box, places[box.id]) for box in picture.boxes]
    return "\n".join([*parts, "</svg>"]) + "\n"


_Place = tuple[float, float, float, float]  # x, y, width, height


def _place(boxes: tuple[Box, ...], arrows: tuple[tuple[str, str], ...]) -> dict[str, _Place]:
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in arrows:
        sources[target].append(source)
    levels: dict[int, list[Box]] = defaultdict(list)
    for box in boxes:
        levels[box.level].append(box)
    centre: dict[str, float] = {}
    places: dict[str, _Place] = {}
    y = float(_GAP_X)
    widest = max((_row_width(row) for row in levels.values()), default=0.0)
    for level in sorted(levels):
        row = sorted(levels[level], key=lambda box: _mean([centre[name] for name in sources[box.id]]))
        x = _GAP_X + (widest - _row_width(row)) / 2
        for box in row:
            width, height = _size(box)
            places[box.id] = (x, y, width, height)
            centre[box.id] = x + width / 2
            x += width + _GAP_X
        y += max(_size(box)[1] for box in row) + _GAP_Y
    return places


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _size(box: Box) -> tuple[float, float]:
    longest = max(len(line) for line in (box.title, *box.lines))
    return longest * _CHAR + 2 * _PADDING, (1 + len(box.lines)) * _LINE + _PADDING


def _row_width(row: list[Box]) -> float:
    return sum(_size(box)[0] for box in row) + _GAP_X * (len(row) - 1)


def _box(box: Box, place: _Place) -> str:
    x, y, width, height = place
    fill = "#e6e6e6" if box.title == "input" else "#eef3fa"
    lines = [f'<tspan font-weight="bold">{escape(box.title)}</tspan>', *(escape(line) for line in box.lines)]
    text = "".join(
        f'<text x="{x + width / 2:.1f}" y="{y + _LINE * (number + 1):.1f}" text-anchor="middle">{line}</text>'
        for number, line in enumerate(lines)
    )
    frame = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{fill}" '
        'stroke="#7a869a"/>'
    )
    return f"<g>{frame}{text}</g>"


def _arrow(source: _Place, target: _Place) -> str:
    """A curve from the bottom of one box to the top of another, which bends aside where it passes other levels."""
    x0, y0 = source[0] + source[2] / 2, source[1] + source[3]
    x1, y1 = target[0] + target[2] / 2, target[1]
    far = y1 - y0 > 3 * _GAP_Y
    aside = max(source[2], target[2]) / 2 + _GAP_X if far and abs(x1 - x0) < target[2] else 0.0
    bend = min((y1 - y0) / 2, 2 * _GAP_Y)
    points = ((x0 + aside, y0 + bend), (x1 + aside, y1 - bend), (x1, y1))
    curve = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{x0:.1f} {y0:.1f} C{curve}" fill="none" stroke="#7a869a" marker-end="url(#tip)"/>'
