"""Stage 5 by itself: a streaming chat request on the wire, annotated; a wrong one; and the metrics that both left."""

import argparse
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from aie_engine import EngineConfig, LocalEngine, demo_model, load_text_model, run_program
from aie_server.demo import annotated_request
from aie_server.served import ServedModel
from aie_server.server import Server

_METRICS = (
    "aie_requests_total",
    "aie_prompt_tokens_total",
    "aie_generation_tokens_total",
    "aie_batch_size",
    "aie_time_to_first_token_seconds_sum",
    "aie_time_to_first_token_seconds_count",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demonstration and returns the exit code."""
    parser = argparse.ArgumentParser(prog="aie_server", description=__doc__)
    parser.add_argument("--prompt", default="What does a scheduler do? One sentence.", help="what to ask the model")
    parser.add_argument("--max-tokens", type=int, default=24)
    options = parser.parse_args(argv)
    num_threads_before = threading.active_count()
    with tempfile.TemporaryDirectory() as folder:
        path, what = demo_model(Path(folder))
        engine = LocalEngine(EngineConfig(path, max_batch_size=4), report=print)
        try:
            print(f"Model: {what}; {engine.info.kernels} kernels, {engine.info.num_threads} threads.")
            with Server([ServedModel(engine.info.model_name, engine, load_text_model(path))], port=0) as server:
                _show(server, options.prompt, options.max_tokens)
        finally:
            engine.close()
    print(f"\nClosed. Threads left behind: {threading.active_count() - num_threads_before}.")
    return 0


def _show(server: Server, prompt: str, max_tokens: int) -> None:
    messages = [{"role": "user", "content": prompt}]
    print(f"\n1. A request on the wire, annotated. The server listens on {server.url}.\n")
    annotated_request(
        server.address,
        {
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    print("\n2. A wrong one: the answer names the field and the rule.\n")
    annotated_request(server.address, {"messages": messages, "temperature": "hot"})
    print("\n3. What these two left in GET /metrics:\n")
    for line in server.metrics.render().splitlines():
        if line.startswith(_METRICS):
            print(f"   {line}")


if __name__ == "__main__":
    run_program(main)
