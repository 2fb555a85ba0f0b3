"""Servers of language models under the same load, in alternating rounds on an idle machine, and the ratios of medians.

    python benchmarks/race.py --set-up llama                  once: install a peer and make its model file (minutes)
    python benchmarks/race.py --with llama                    aie against it, with a report at the end
    python benchmarks/race.py --with llama,vllm,transformers --generator vllm --report benchmarks/reports/race

Only one contender runs at a time; all get the same seeded requests: streaming completions of 64 to 192 tokens in and 32
to 96 out, greedy, never stopping early. --generator vllm sends them with `vllm bench serve` instead, a load generator
written by others. --report PATH writes PATH.md, PATH.svg and PATH.json. Exit code 1 when a request failed.
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from race_peers import MODEL, OWN, PACKAGES, Contender, Peers, default_folder
from race_report import Race, Result, write_report

from aie.bench.client import Endpoint, get_text
from aie.bench.load import Sampler, run_level
from aie.bench.report import summarize
from aie.bench.target import Target, reach
from aie.bench.workload import PlannedRequest, plan_requests
from aie_engine.sizing import available_cores

INPUT_TOKENS, OUTPUT_TOKENS = (64, 192), (32, 96)
START_TIMEOUT_S = 300.0
KNOWN = ", ".join([*list(OWN)[1:], *PACKAGES])


def plan(level: int, options: argparse.Namespace, number: int) -> list[PlannedRequest]:
    """The requests of one level in one round: the same for everybody."""
    count = max(8, options.per_client * level)
    seed = options.seed + 1000 * number + level
    return plan_requests(count, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, seed=seed)


@contextmanager
def running(contender: Contender) -> Iterator[Target]:
    """Starts a server on a free loopback port, waits until /health is 200, and stops exactly what it started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        shlex.split(contender.command.format(port=port)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **contender.environment}, start_new_session=True,
    )  # fmt: skip
    try:
        yield wait_until_ready(server, f"http://127.0.0.1:{port}", contender)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_until_ready(server: subprocess.Popen, url: str, contender: Contender) -> Target:
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}: {contender.command}")
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            if asyncio.run(get_text(Endpoint.parse(url), "/health"))[0] == 200:
                return reach(url, None, None, server.pid)
        time.sleep(0.2)
    raise SystemExit(f"the server did not become ready: {contender.command}")


def measure(target: Target, level: int, options: argparse.Namespace, number: int) -> Result:
    """One level under our own load generator."""
    sampler = Sampler(target.endpoint, None, target.rss_bytes)
    requests = plan(level, options, number)
    row = summarize(
        asyncio.run(run_level(target.endpoint, target.model, requests, level, sampler=sampler, timeout_s=600))
    )
    return Result(
        row.output_tokens_per_s, row.ttft.p50, row.tpot.p50, row.e2e.max, row.ttft.max, row.peak_rss_bytes, row.failed,
    )  # fmt: skip


def measure_by_vllm(
    target: Target, level: int, options: argparse.Namespace, number: int, program: Path, tokenizer: Path
) -> Result:
    """One level under `vllm bench serve`: random token prompts of 128 ± 50 %, 64 ± 50 % out."""
    out = options.peers / "vllm-bench.json"
    out.unlink(missing_ok=True)
    count = max(8, options.per_client * level)
    command = [
        str(program), "bench", "serve", "--backend", "openai", "--base-url", target.endpoint.url, "--endpoint",
        "/v1/completions", "--model", target.model, "--tokenizer", str(tokenizer), "--dataset-name", "random",
        "--random-input-len", "128", "--random-output-len", "64", "--random-range-ratio", "0.5", "--ignore-eos",
        "--temperature", "0", "--num-prompts", str(count), "--max-concurrency", str(level), "--num-warmups", "2",
        "--seed", str(options.seed + 1000 * number + level), "--save-result", "--result-dir", str(out.parent),
        "--result-filename", out.name, "--disable-tqdm",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if not out.exists():
        raise SystemExit(f"vllm bench serve ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures = json.loads(out.read_text())
    return Result(
        figures["output_throughput"], figures["median_ttft_ms"], figures["median_tpot_ms"], figures.get("p99_e2el_ms"),
        figures["p99_ttft_ms"], target.rss_bytes(), count - figures["completed"],
    )  # fmt: skip


def run_server(contender: Contender, options: argparse.Namespace, number: int, peers: Peers) -> dict[int, Result]:
    """All levels of one round on a server started for it."""
    results = {}
    with running(contender) as target:
        warm_up = plan_requests(4, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, seed=options.seed + number)
        sampler = Sampler(target.endpoint, None, lambda: None)
        asyncio.run(run_level(target.endpoint, target.model, warm_up, 2, sampler=sampler, timeout_s=600))
        for level in options.levels:
            if options.generator == "vllm":
                program = peers.folder / "vllm" / "bin" / "vllm"
                results[level] = measure_by_vllm(target, level, options, number, program, peers.safetensors)
            else:
                results[level] = measure(target, level, options, number)
    return results


def run_script(contender: Contender, options: argparse.Namespace, number: int) -> dict[int, Result]:
    """All levels of one round in a peer's own Python."""
    with subprocess.Popen(
        shlex.split(contender.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, **contender.environment},
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None

        def answer() -> dict:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"it ended with {process.wait()}: {contender.command}")
            return json.loads(line)

        answer()
        results = {}
        for level in options.levels:
            requests = plan(level, options, number)
            task = {"prompts": [request.prompt for request in requests],
                    "max_tokens": [request.max_tokens for request in requests], "batch": level}  # fmt: skip
            print(json.dumps(task), file=process.stdin, flush=True)
            done = answer()
            results[level] = Result(done["tokens"] / done["seconds"])
        process.stdin.close()
    return results


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="others", default="llama", help=f"of {KNOWN}; by comma")
    parser.add_argument("--set-up", default="", help=f"install these first: {', '.join(PACKAGES)}; by comma")
    parser.add_argument("--peers", type=Path, default=default_folder(), help="folder of their environments and files")
    parser.add_argument("--python", default=sys.executable, help="Python to make their environments with")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-client", type=int, default=3, help="requests per unit of concurrency, at least 8 in all")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generator", choices=("aie", "vllm"), default="aie")
    parser.add_argument("--report", type=Path, help="write PATH.md, PATH.svg and PATH.json")
    options = parser.parse_args()
    options.levels = [int(part) for part in options.concurrency.split(",")]
    options.others = [part for part in options.others.split(",") if part]
    if unknown := set(options.others) - {*OWN, *PACKAGES}:
        parser.error(f"--with knows {KNOWN}; not {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    options = parse()
    peers = Peers(options.peers, options.threads)
    if options.set_up:
        for name in options.set_up.split(","):
            peers.set_up(name, options.python)
        return 0
    contenders = [peers.contender(name) for name in ("aie", *options.others)]
    race = Race(
        MODEL, options.generator, options.levels, options.threads, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    )
    for number in range(options.rounds):
        for contender in contenders:
            if contender.script:
                results = run_script(contender, options, number)
            else:
                results = run_server(contender, options, number, peers)
            for level, result in results.items():
                race.add(contender, level, result)
                print(f"round {number + 1} {contender.name:18} {level:3} clients: {result}", flush=True)
    print("\n" + race.markdown())
    if options.report is not None:
        write_report(race, options.report)
    return int(race.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
