"""A report for people: Markdown, or one HTML file that needs nothing else and asks no network."""

from collections.abc import Mapping
from html import escape
from typing import Any

from aie.bench.curve import curve
from aie.bench.recorded import level_label
from aie.bench.sections import Section, facts, sections
from aie.bench.svg import line_chart

__all__ = ["html", "markdown"]

_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}"
    "th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8884}"
    "th:first-child,td:first-child{text-align:left}svg{width:100%;height:auto}div{overflow-x:auto}"
)


def markdown(document: Mapping[str, Any]) -> str:
    """Headings, tables, and what is to be known of them."""
    lines = [f"# Load test of {_cell(str(document['model']))}", ""]
    for section in sections(document):
        lines += [f"## {section.title}", "", _row(section.header), _row(["---", *("---:" for _ in section.header[1:])])]
        lines += [*(_row(row) for row in section.rows), ""]
    return "\n".join([*lines, *(f"- {_line(fact)}" for fact in facts(document))]) + "\n"


def html(document: Mapping[str, Any]) -> str:
    """Charts, tables, and what is to be known of them. All that came from a server is escaped."""
    title = f"Load test of {escape(str(document['model']))}"
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
    ]
    for heading, chart in (("Latency against throughput", _curve(document)), ("Tokens over time", _time(document))):
        if chart:
            parts.append(f"<h2>{heading}</h2>{chart}")
    parts += [_html_table(section) for section in sections(document)]
    parts.append("<h2>Notes</h2><ul>" + "".join(f"<li>{escape(fact)}</li>" for fact in facts(document)) + "</ul>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _curve(document: Mapping[str, Any]) -> str:
    unit, points = curve(document)
    bend = document.get("knee")
    series: dict[str, list[tuple[float, float, str]]] = {}
    for point in points:
        for name, value in point.latencies.items():
            mark = " (knee)" if point.label == bend else ""
            said = f"{point.label}{mark}: {name} {value:.1f} ms at {point.throughput:.1f} {unit}"
            series.setdefault(name, []).append((point.throughput, value, said))
    return line_chart(series, x_label=unit, y_label="ms, logarithmic", log_y=True)


def _time(document: Mapping[str, Any]) -> str:
    """A line for each level, of its first run."""
    series: dict[str, list[tuple[float, float, str]]] = {}
    for level in document["levels"]:
        name, found = level_label(level), level.get("timeline")
        if found is not None and name not in series:
            bin_s = found["bin_s"]
            series[name] = [((index + 0.5) * bin_s, rate, "") for index, rate in enumerate(found["tokens_per_s"])]
    return line_chart(series, x_label="seconds from the start of the level", y_label="tokens/s")


def _html_table(section: Section) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in section.header)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
    return (
        f"<h2>{escape(section.title)}</h2><div><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(cells: "list[str] | Any") -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    """What came from a server must not begin a heading, a link or a tag."""
    return " ".join(text.split()).replace("<", "&lt;").replace("`", "'").replace("[", "\\[")
