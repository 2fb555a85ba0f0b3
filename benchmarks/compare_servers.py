"""Two OpenAI-compatible servers under the same load, in alternating rounds, and the ratio of their medians.

    python benchmarks/compare_servers.py --theirs 'llama-server -m model-q8_0.gguf -t 2 -np 32 -c 16384 --port {port}'

Only one server runs at a time, on an otherwise idle machine; both get the same seeded requests. Prints, per concurrency
level, output tokens/s, TTFT and peak memory of each, and the ratio ours / theirs. Exit code 1 when a request failed.
"""

import argparse
import asyncio
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager, suppress

from aie.bench.client import get_text
from aie.bench.load import Sampler, run_level
from aie.bench.report import Row, summarize
from aie.bench.target import Target, reach
from aie.bench.workload import plan_requests
from aie.version import versions


@contextmanager
def running(command: str):
    """Starts a server on a free loopback port, waits until /health is 200, and stops exactly what it started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = shlex.split(command.format(port=port))
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        yield wait_until_ready(server, url, command)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_until_ready(server: subprocess.Popen, url: str, command: str) -> Target:
    from aie.bench.client import Endpoint

    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}: {command}")
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            if asyncio.run(get_text(Endpoint.parse(url), "/health"))[0] == 200:
                return reach(url, None, None, server.pid)
        time.sleep(0.2)
    raise SystemExit(f"the server did not become ready: {command}")


def measure(target: Target, levels: list[int], per_client: int, seed: int) -> list[Row]:
    rows = []
    for level in [0, *levels]:  # level 0: a warm-up that is not counted
        count = max(8, per_client * level) if level else 4
        plan = plan_requests(count, input_tokens=(64, 192), output_tokens=(32, 96), seed=seed + level)
        sampler = Sampler(target.endpoint, None, target.rss_bytes)
        result = asyncio.run(run_level(target.endpoint, target.model, plan, level or 2, sampler=sampler, timeout_s=600))
        if level:
            rows.append(summarize(result))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default=f"{sys.executable} -m aie serve --threads 2 --port {{port}}")
    parser.add_argument("--theirs", required=True, help="command with {port} in it")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-client", type=int, default=3, help="requests per unit of concurrency")
    options = parser.parse_args()
    levels = [int(part) for part in options.concurrency.split(",")]
    rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for number in range(options.rounds):
        for who, command in (("ours", options.ours), ("theirs", options.theirs)):
            with running(command) as target:
                for row in measure(target, levels, options.per_client, seed=1000 * number):
                    rows[who, row.concurrency].append(row)
                    print(f"round {number + 1} {who:6} {row.concurrency:3} clients: {row.output_tokens_per_s:7.1f} "
                          f"tokens/s, TTFT {row.ttft_p50_ms or 0:6.0f} ms, TPOT {row.tpot_p50_ms or 0:6.1f} ms, "
                          f"{(row.peak_rss_bytes or 0) / 1e6:5.0f} MB, {row.failed} failed", flush=True)  # fmt: skip

    def median(who: str, level: int, name: str) -> float:
        return statistics.median(getattr(row, name) or 0.0 for row in rows[who, level])

    print(f"\nmedians of {options.rounds} rounds; " + ", ".join(f"{k} {v}" for k, v in versions().items()))
    print(f"ours:   {options.ours}\ntheirs: {options.theirs}")
    for level in levels:
        ours, theirs = (median(who, level, "output_tokens_per_s") for who in ("ours", "theirs"))
        ttft = median("ours", level, "ttft_p50_ms") / max(1e-9, median("theirs", level, "ttft_p50_ms"))
        print(f"{level:3} clients: {ours:.1f} / {theirs:.1f} tokens/s = {ours / theirs:.2f}×, TTFT {ttft:.2f}×")
    return int(any(row.failed for results in rows.values() for row in results))


if __name__ == "__main__":
    sys.exit(main())
