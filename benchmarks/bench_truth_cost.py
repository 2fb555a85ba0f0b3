"""What the load generator itself costs: its processor time while 100 streams bring 20 tokens a second each."""

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
from bench_truth_scripts import even_script
from bench_truth_verdict import Compared, Finding, lookup
from scripted_server import scripted_server

__all__ = ["measure_cost"]

STREAMS, TOKENS_PER_S, SECONDS = 100, 20, 10
MOST = 0.10  # of one core
_NEAR = 0.01  # of a core: as near as what it says of itself must be, where it is more
_EDGE_S = 1.0  # left out at both ends: streams begin and end there
_LOOK_EVERY_S = 0.1

Look = tuple[float, dict[int, float]]
"""When (monotonic), and how much processor time each process had used until then."""


def measure_cost(folder: Path) -> tuple[list[Compared], list[str]]:
    """The share of a core: it is right where it is no more than allowed, or where the generator says how much it is."""
    script = even_script(50.0, 1e3 / TOKENS_PER_S, SECONDS * TOKENS_PER_S)
    json_path = folder / "cost.json"
    looks: list[Look] = []
    with scripted_server([script]) as server:
        command = [
            sys.executable, "-m", "aie", "bench", "--url", server.url, "--concurrency", str(STREAMS), "--requests",
            str(STREAMS), "--input-tokens", "64", "--json", str(json_path),
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as bench:
            assert bench.stderr is not None
            watching = threading.Thread(target=_watch, args=(bench, looks))
            watching.start()
            errors = bench.stderr.read()
            bench.wait()
            watching.join()
    if bench.returncode != 0:
        raise SystemExit(f"aie bench ended with {bench.returncode}:\n{errors[-2000:]}")
    level = json.loads(json_path.read_text())["levels"][0]
    streams = server.records[-STREAMS:]  # those before were to warm up
    begin_s = max(one.arrival_s for one in streams) + _EDGE_S
    end_s = min(one.end_s for one in streams) - _EDGE_S
    shares = {pid: share for pid in looks[-1][1] if (share := _share(looks, pid, begin_s, end_s)) > 0.0005}
    found = sum(shares.values())
    per_process = " + ".join(f"{share:.1%}" for share in shares.values())
    said = lookup(level, "client_cpu")
    is_told = said is not None and abs(said - found) <= max(_NEAR, 0.1 * found)
    finding = Finding.RIGHT if found <= MOST or is_told else Finding.WRONG
    num_events = sum(begin_s <= at_s < end_s for one in streams for at_s, _ in one.texts)
    remarks = [
        f"processor time of its processes over {end_s - begin_s:.1f} s of streaming: {per_process or '0'} of a core",
        "it says itself: " + ("nothing" if said is None else f"{said:.1%} of a core, with beginning and end"),
    ]
    share = Compared("share of a core, at most", MOST, round(found, 4), finding)
    return [share], [f"{num_events / (end_s - begin_s):.0f} events per second", *remarks]


def _watch(bench: subprocess.Popen[str], looks: list[Look]) -> None:
    """Until it has ended. The last look holds all processes that there ever were."""
    used: dict[int, float] = {}
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(bench.pid)
        while bench.poll() is None:
            for process in [top, *top.children(recursive=True)]:
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    used[process.pid] = times.user + times.system
            looks.append((time.monotonic(), dict(used)))
            time.sleep(_LOOK_EVERY_S)


def _share(looks: list[Look], pid: int, begin_s: float, end_s: float) -> float:
    """Of one core, of one process, between two moments."""
    inside = [(at_s, used.get(pid, 0.0)) for at_s, used in looks if begin_s <= at_s <= end_s]
    if len(inside) < 2:
        return 0.0
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
