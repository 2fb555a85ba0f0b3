"""A terminal's picture as SVG, small and with nothing fetched from elsewhere; what the scripts here share."""

import threading
import urllib.request
from collections.abc import Callable
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

__all__ = ["Asking", "recording", "save"]

# Without the web font that rich's own template asks a server for.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""
_THEME = TerminalTheme(
    (24, 26, 31), (208, 212, 220),
    [(24, 26, 31), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194),
     (208, 212, 220)],
)  # fmt: skip
_MAX_BYTES = 200_000

Body = Callable[[int, int], tuple[str, str, str]]


def recording(columns: int, lines: int | None = None) -> Console:
    """A console that keeps what is printed to it."""
    return Console(
        record=True, width=columns, height=lines, markup=False, emoji=False, highlight=False, force_terminal=True,
        color_system="truecolor",
    )  # fmt: skip


def save(console: Console, path: Path, title: str) -> None:
    """What was printed, as a picture. Raises ValueError for one that is too large for a repository."""
    svg = console.export_svg(title=title, theme=_THEME, code_format=_SVG, unique_id=path.stem)
    if len(svg) > _MAX_BYTES:
        raise ValueError(f"{path} would have {len(svg)} bytes")
    path.write_text(svg, encoding="utf-8")
    print(f"{path} is written ({len(svg)} bytes)")


class Asking:
    """A context: so many clients ask `url` one request after another. Of client n, request i: `body(n, i)` → its name,
    the path, and JSON."""

    def __init__(self, url: str, num_clients: int, body: Body) -> None:
        self._url, self._body = url, body
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(num_clients)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, client: int) -> None:
        for number in count():
            if self._stop.is_set():
                return
            name, path, body = self._body(client, number)
            asked = urllib.request.Request(f"{self._url}{path}", body.encode(), {"X-Request-Id": name})
            urllib.request.urlopen(asked, timeout=60).read()
