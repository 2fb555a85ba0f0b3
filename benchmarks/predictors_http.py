"""What a request to a small model costs over HTTP, part by part: `python benchmarks/predictors_http.py [--json PATH]`.

The MLP 784-256-10 from a seed; tensors as bytes, one request at a time per connection. Servers that have one part more
each (`http_rungs.py`; the last two are `aie serve`) answer the same request, whose load comes from a client in C that
takes a few microseconds of processor time per request. Two figures of each:

    requests/s   what came out, on whatever cores there are; it needs an idle machine
    µs CPU       processor time of the server (and its workers) per request, user and system; of the client beside it

A Python process has one interpreter lock, so 1 s divided by the front's µs CPU is about what it can do at most, however
many cores there are; what the lock's hand-over costs on top is the difference between 1 connection and 32.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from http_load import Load, LoadClient
from predictor_models import write_mlp

from aie.bench.target import own_server
from aie.version import versions
from aie_tensor import run_program

WANTED_PER_S = 2500  # what the project asks of 32 connections on two cores
RUNGS = {
    "sockets": "bare sockets, a thread per connection",
    "standard": "the standard library's http.server",
    "framing": "our HTTP layer alone",
    "handler": "+ keys, limits, tensors, metrics",
    "in process": "+ batcher and model, --workers 0",
    "patient": "the same with --max-wait-ms 20",
    "adaptive": "the same, while company is expected",
    "worker": "+ a worker process, --workers 1",
}
SERVED = {
    "in process": ("--workers", "0"),
    "patient": ("--workers", "0", "--max-wait-ms", "20"),
    "adaptive": ("--workers", "0", "--max-wait-ms", "20"),
    "worker": ("--workers", "1"),
}
MOST = 32  # in a batch, as `aie serve` has it for this kind of model


@dataclass(frozen=True, slots=True)
class Cost:
    """One server under one load."""

    rung: str
    connections: int
    per_s: float
    p50_ms: float
    p99_ms: float
    front_us: float  # processor time of the server's process per request
    worker_us: float  # of its children
    client_us: float
    switches: float  # context switches of the front per request, wanted or not
    mean_batch: float | None  # None: there is no batcher


def write_request(folder: Path) -> Path:
    """As Triton's own client sends it."""
    pixels = np.random.default_rng(0).random(784, np.float32)
    parameters = {"binary_data_size": pixels.nbytes}
    described = {"name": "pixels", "datatype": "FP32", "shape": [1, 784], "parameters": parameters}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    body = head + pixels.tobytes()
    lines = (
        "POST /v2/models/mlp/infer HTTP/1.1", "Host: 127.0.0.1", "User-Agent: http_load", "Accept: */*",
        "Content-Type: application/octet-stream", f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(body)}", "", "",
    )  # fmt: skip
    path = folder / "request"
    path.write_bytes("\r\n".join(lines).encode() + body)
    return path


def ask_once(port: int, request: bytes) -> bytes:
    """The whole answer, head and body."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request)
        answer = b""
        while (end := answer.find(b"\r\n\r\n")) < 0 or len(answer) < end + 4 + _length(answer[:end]):
            data = connection.recv(65536)
            if not data:
                raise SystemExit(f"the server hung up after {answer!r}")
            answer += data
    return answer


def _length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next(int(value) for name, _, value in lines if name == b"content-length")


@contextmanager
def rung_server(rung: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Port and process of one of `http_rungs.RUNGS`."""
    command = [sys.executable, str(Path(__file__).with_name("http_rungs.py")), rung, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{rung} did not start")
        yield int(line), process.pid
    finally:
        process.stdin.close()
        process.wait(10)


@contextmanager
def served(rung: str, folder: Path, serve_args: list[str]) -> Iterator[tuple[int, int]]:
    """Port and process of `aie serve`."""
    model = folder / "adaptive" / "mlp" if rung == "adaptive" else folder / "mlp"
    with own_server([str(model), *SERVED[rung], "--log-level", "warning", *serve_args]) as (url, pid):
        yield int(url.rpartition(":")[2]), pid


def read_batches(port: int) -> tuple[float, float] | None:
    """Inputs and batches since the start, from the server's metrics; None where there are none."""
    text = ask_once(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").decode()
    totals = {"aie_prediction_batch_inputs_total": 0.0, "aie_prediction_batches_total": 0.0}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if (name := name.partition("{")[0]) in totals:
            totals[name] += float(value)
    inputs, batches = totals.values()
    return (inputs, batches) if batches else None


def measure(
    rung: str, client: LoadClient, port: int, pid: int, request: Path, connections: int, seconds: float
) -> Cost:
    """Warm-up requests cost processor time, too, and are counted with the others."""
    front = psutil.Process(pid)
    workers = front.children(recursive=True)
    before, batches = _usage(front, workers), read_batches(port) if rung in SERVED else None
    load = client.run(port, request, connections=connections, seconds=seconds)
    after, batches_after = _usage(front, workers), read_batches(port) if rung in SERVED else None
    front_s, worker_s, switches = (b - a for a, b in zip(before, after, strict=True))
    mean_batch = None
    if batches_after is not None:
        inputs, number = (b - a for a, b in zip(batches or (0.0, 0.0), batches_after, strict=True))
        mean_batch = inputs / number
    return _cost(rung, load, front_s, worker_s, switches, mean_batch)


def _usage(front: psutil.Process, workers: list[psutil.Process]) -> tuple[float, float, float]:
    own = front.cpu_times()
    theirs = sum(times.user + times.system for times in (one.cpu_times() for one in workers))
    return own.user + own.system, theirs, _switches(front.pid)


def _switches(pid: int) -> float:
    """Of all threads; 0 where the system does not tell."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = status.read_text().splitlines()
        except OSError:  # the thread has ended since
            continue
        count += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return float(count)


def _cost(rung: str, load: Load, front_s: float, worker_s: float, switches: float, mean_batch: float | None) -> Cost:
    count = load.all_requests
    return Cost(
        rung, load.connections, load.per_s, load.p50_us / 1e3, load.p99_us / 1e3, front_s / count * 1e6,
        worker_s / count * 1e6, load.cpu_s / load.requests * 1e6, switches / count, mean_batch,
    )  # fmt: skip


def middle(costs: list[Cost]) -> Cost:
    """The run whose rate is the median."""
    wanted = median(sorted(cost.per_s for cost in costs)[: len(costs) | 1])
    return min(costs, key=lambda cost: abs(cost.per_s - wanted))


def show(costs: list[Cost], connections: list[int]) -> None:
    """A table for each number of connections, and what it says."""
    for number in connections:
        print(f"\n{number} connection{'s' * (number > 1)}\n")
        print(
            f"{'server':<40}{'requests/s':>11}{'p50 ms':>8}{'p99 ms':>8}{'front µs':>10}{'more':>7}{'worker µs':>10}"
            f"{'client µs':>10}{'switches':>9}{'full':>7}"
        )
        before = None
        for cost in (cost for cost in costs if cost.connections == number):
            is_next = cost.rung not in ("standard", "patient", "adaptive")
            more = f"{cost.front_us - before:+.0f}" if before is not None and is_next else ""
            batch = "" if cost.mean_batch is None else f"{cost.mean_batch / MOST:.0%}"
            print(
                f"{RUNGS[cost.rung]:<40}{cost.per_s:>11.0f}{cost.p50_ms:>8.2f}{cost.p99_ms:>8.2f}"
                f"{cost.front_us:>10.0f}{more:>7}{cost.worker_us:>10.0f}{cost.client_us:>10.0f}{cost.switches:>9.1f}"
                f"{batch:>7}"
            )
            if is_next:
                before = cost.front_us
    print(
        "\nfront µs: processor time of the server's process per request. more: than the row before that is ours, "
        "measured\nunder its own load. switches: context switches of that process per request. "
        f"full: mean part of {MOST} in a batch."
    )


def conclude(costs: list[Cost], connections: int) -> None:
    """The sentence that the table is for."""
    at = {cost.rung: cost for cost in costs if cost.connections == connections}
    best = max((at[rung] for rung in SERVED if rung in at), key=lambda cost: cost.per_s)
    bare, standard = at["sockets"], at["standard"]
    print(
        f"\n→ {best.per_s:.0f} requests/s at {connections} connections ({RUNGS[best.rung]}); "
        f"{WANTED_PER_S} {'reached' if best.per_s >= WANTED_PER_S else 'not reached'}. The standard library's server "
        f"with nothing behind it: {standard.per_s:.0f}; bare sockets in Python: {bare.per_s:.0f}.\n"
        f"  The front takes {best.front_us:.0f} µs of processor time per request, {bare.front_us:.0f} µs of which bare "
        f"sockets take, too; one interpreter lock has room for about {1e6 / best.front_us:.0f} such requests/s."
    )


def main() -> int:
    """0 when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", default="1,32")
    parser.add_argument("--seconds", type=float, default=1.5, help="per server, load and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(RUNGS), help="servers, of " + ", ".join(RUNGS))
    parser.add_argument("--serve-args", default="", help="further flags for `aie serve`")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    connections = [int(number) for number in options.connections.split(",")]
    rungs = [rung for rung in RUNGS if rung in options.only.split(",")]
    found: dict[tuple[str, int], list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="aie-http-") as scratch:
        folder = Path(scratch)
        write_mlp(folder / "mlp")
        (write_mlp(folder / "adaptive" / "mlp") / "processing.toml").write_text("[batching]\nadaptive_wait = true\n")
        request, client = write_request(folder), LoadClient(folder)
        with served("in process", folder, []) as (port, _):
            (folder / "answer").write_bytes(ask_once(port, request.read_bytes()))
        for rung in rungs:
            server = served(rung, folder, options.serve_args.split()) if rung in SERVED else rung_server(rung, folder)
            with server as (port, pid):
                client.run(port, request, connections=8, seconds=0.5)
                for _ in range(options.rounds):
                    for number in connections:
                        cost = measure(rung, client, port, pid, request, number, options.seconds)
                        found.setdefault((rung, number), []).append(cost)
    costs = [middle(found[rung, number]) for number in connections for rung in rungs]
    show(costs, connections)
    if {"sockets", "standard"} <= set(rungs) and set(SERVED) & set(rungs):
        conclude(costs, max(connections))
    print("\n" + " · ".join(f"{name} {number}" for name, number in versions().items()))
    if options.json is not None:
        figures = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": versions(),
            "costs": [asdict(cost) for cost in costs],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run_program(main)
