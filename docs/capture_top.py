"""Draws `docs/aie-top.svg`: what `aie top` shows of a real server under load.

    python docs/capture_top.py [OUT.svg]

A server is started in this process with the generated tiny model and so few KV blocks that requests have to wait for
each other; a dozen clients ask it for a few seconds, one of them with long prompts; then one picture is taken.
"""

import itertools
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from rich.console import Console

from aie.bench.client import Endpoint
from aie.top.look import look_at
from aie.top.watch import Screen, watch
from aie_engine import EngineConfig, WorkerEngine, load_text_model
from aie_loader import write_tiny_gguf
from aie_server import ServedModel, Server

OUT = Path(__file__).with_name("aie-top.svg")
NUM_CLIENTS = 14
WARM_UP_S = 6.0
INTERVAL_S = 4.0
_COLUMNS = 118
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


def main() -> None:
    """Serve, ask, look, draw."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_gguf(Path(folder) / "tiny.gguf")
        engine = WorkerEngine(EngineConfig(model, max_batch_size=12, kv_memory_bytes=420_000, speculate=4))
        try:
            with Server([ServedModel("tiny", engine, load_text_model(model))], port=0) as server:
                svg = _watched(server.url)
        finally:
            engine.close()
    out.write_text(svg, encoding="utf-8")
    print(f"{out} is written")


def _watched(url: str) -> str:
    stop = threading.Event()
    clients = [threading.Thread(target=_ask, args=(url, number, stop), daemon=True) for number in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(WARM_UP_S)
    console = Console(record=True, width=_COLUMNS, markup=False, emoji=False, highlight=False, force_terminal=True)
    endpoint = Endpoint.parse(url)
    screen = Screen(console, "http://127.0.0.1:8000", once=True, max_rows=10)
    watch(lambda: look_at(endpoint), screen, interval_s=INTERVAL_S, once=True)
    stop.set()
    for client in clients:
        client.join()
    return console.export_svg(title="aie top", code_format=_SVG)


def _ask(url: str, client: int, stop: threading.Event) -> None:
    text = "The scheduler takes the requests in turn. "
    for number in itertools.count():
        if stop.is_set():
            return
        is_long = client == 0
        prompt = f"{text * 12 if is_long else text}{client}"
        body = f'{{"prompt": "{prompt}", "max_tokens": {8 if is_long else 60 + 10 * client}, "ignore_eos": true}}'
        headers = {"X-Request-Id": f"{'summary' if is_long else 'chat'}-{client}-{number}"}
        urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/completions", body.encode(), headers), timeout=60
        ).read()


if __name__ == "__main__":
    main()
