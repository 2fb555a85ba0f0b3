"""Draws `docs/aie-bench.svg` and `docs/aie-bench-report.svg`: a load test of a real server while it runs, with the
table that it ends with, and the chart of the page that `--html` writes.

    python docs/capture_bench.py [FOLDER]

A server is started in this process with the generated tiny model; `aie bench` sends it conversations from 1 to 32
clients at once. Of what its dashboard draws, the picture shows the one in the middle of the last level, and of what it
prints the tables and the plot. The report is a page for browsers; only its first chart, which is SVG by itself, is
taken from it. Run it where nothing else runs: what it measures is what it shows.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from terminal_svg import recording, save

from aie.app import app
from aie.bench import progress
from aie.bench.running import Snapshot
from aie_engine import EngineConfig, WorkerEngine, load_text_model
from aie_loader import write_tiny_gguf
from aie_server import ServedModel, Server

OUT = Path(__file__).parent
COLUMNS = 118
LEVELS = "1,2,4,8,16,32"
NUM_REQUESTS = 160  # of each level
_CHART = re.compile(r"<svg .*?</svg>", re.DOTALL)
_SHOWN = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" style="background:#fff;color:#222"'


def main() -> None:
    """Serve, measure, draw."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    pictures: list[tuple[int, RenderableType]] = []
    with tempfile.TemporaryDirectory() as folder:
        model, page = write_tiny_gguf(Path(folder) / "tiny.gguf"), Path(folder) / "report.html"
        engine = WorkerEngine(EngineConfig(model, max_batch_size=16))
        try:
            with Server([ServedModel("tiny", engine, load_text_model(model))], port=0) as server:
                table = _measured(server.url, page, pictures)
        finally:
            engine.close()
        report = page.read_text(encoding="utf-8")
    console = recording(COLUMNS)
    console.print(Text(f"$ aie bench --url http://127.0.0.1:8000 --concurrency {LEVELS} --html report.html", "bold"))
    console.print(Text("\nwhile it runs", "dim"))
    console.print(min(pictures, key=lambda one: abs(one[0] - NUM_REQUESTS // 2))[1])
    console.print(Text("\nand when it has ended", "dim"))
    console.print(Text(_without_notes(table)))
    save(console, out / "aie-bench.svg", "aie bench")
    found = _CHART.search(report)
    if found is None:
        sys.exit("the report has no chart")
    chart = found.group().replace("<svg ", f"<svg {_SHOWN} ", 1)
    (out / "aie-bench-report.svg").write_text(chart + "\n", encoding="utf-8")
    print(f"{out / 'aie-bench-report.svg'} is written ({len(chart)} bytes)")


def _measured(url: str, page: Path, pictures: list[tuple[int, RenderableType]]) -> str:
    """What `aie bench` prints. pictures: gets what its dashboard draws in the last level, by how many are done."""
    draw = progress.draw

    def kept(label: str, total: int | None, seen: Snapshot, **more: Any) -> RenderableType:
        picture = draw(label, total, seen, **more)
        if label.startswith(LEVELS.rpartition(",")[2]) and seen.num_ended:
            pictures.append((seen.num_ended, picture))
        return picture

    progress.draw = kept
    printed = io.StringIO()
    os.environ["COLUMNS"] = str(COLUMNS)
    command = ["bench", "--url", url, "--concurrency", LEVELS, "--input-tokens", "16-32", "--output-tokens", "64"]
    command += ["--requests", str(NUM_REQUESTS), "--ui", "live", "--html", str(page)]
    with contextlib.redirect_stdout(printed):
        app(command, standalone_mode=False)
    return printed.getvalue().strip("\n")


def _without_notes(printed: str) -> str:
    """The tables, and the plot: what stands between them is said in words."""
    lines = printed.split("\n")
    ends = max(number for number, line in enumerate(lines) if line.strip() and line.strip("─ ") == "")
    ends = next(number for number, line in enumerate(lines) if number > ends and not line.strip())
    begins = next((number for number, line in enumerate(lines) if line.startswith("latency in ms")), len(lines))
    return "\n".join([*lines[:ends], "", "[…]", "", *lines[begins:]])


if __name__ == "__main__":
    main()
