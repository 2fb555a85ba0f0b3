"""Draws `docs/aie-top.svg`: what `aie top` shows of a real server under load.

    python docs/capture_top.py [OUT.svg]

A server is started in this process with the generated tiny model and so few KV blocks that requests have to wait for
each other; a dozen clients ask it for a few seconds, one of them with long prompts; then one picture is taken, of a
terminal of 118 columns and 40 lines.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from terminal_svg import Asking, recording, save

from aie.bench.client import Endpoint
from aie.top.feed import EventFeed
from aie.top.history import History
from aie.top.listening import look_and_listen
from aie.top.screen import draw
from aie_engine import EngineConfig, WorkerEngine, load_text_model
from aie_loader import write_tiny_gguf
from aie_server import ServedModel, Server

OUT = Path(__file__).with_name("aie-top.svg")
NUM_CLIENTS = 14
WARM_UP_S = 5.0
INTERVAL_S = 2.0
NUM_LOOKS = 4
COLUMNS, LINES = 118, 40


def main() -> None:
    """Serve, ask, look, draw."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_gguf(Path(folder) / "tiny.gguf")
        engine = WorkerEngine(EngineConfig(model, max_batch_size=12, kv_memory_bytes=420_000, speculate=4))
        try:
            with Server([ServedModel("tiny", engine, load_text_model(model))], port=0) as server:
                history = _watched(server.url)
        finally:
            engine.close()
    console = recording(COLUMNS, LINES)
    picture = draw(history, "http://127.0.0.1:8000", when=time.strftime("%H:%M:%S"))
    picture.is_fitted = True
    console.print(picture)
    save(console, out, "aie top")


def _watched(url: str) -> History:
    endpoint, history = Endpoint.parse(url), History()
    with Asking(url, NUM_CLIENTS, _body), EventFeed(endpoint) as feed:
        look = partial(look_and_listen, endpoint, feed)
        time.sleep(WARM_UP_S)
        for _ in range(NUM_LOOKS):
            history.add(look())
            time.sleep(INTERVAL_S)
        history.add(look())
    return history


def _body(client: int, number: int) -> tuple[str, str, str]:
    text = "The scheduler takes the requests in turn. "
    is_long = client == 0
    prompt = f"{text * 12 if is_long else text}{client}"
    body = f'{{"prompt": "{prompt}", "max_tokens": {8 if is_long else 60 + 10 * client}, "ignore_eos": true}}'
    return f"{'summary' if is_long else 'chat'}-{client}-{number}", "/v1/completions", body


if __name__ == "__main__":
    main()
