"""Models that answer at once: behind the server, and the engine alone beside other libraries.

    python benchmarks/predictors.py [--only http|engine] [--peer-python PATH]… [--json PATH]

1. http: an MLP 784-256-10 and a small ResNet, both made from a seed, and MiniLM, by `aie bench` at 1, 8, 32 and 64
   clients: one request after another on every client's own connection.
2. engine: sequences/s of MiniLM, batched in several ways, on lognormal lengths and, beside them, on equal ones, where
   padding costs nothing and every way looks alike. A peer's Python that has onnxruntime, or torch and transformers,
   runs the same token ids on as many threads (one that has onnx, too, exports the model; --onnx names a file that is
   there already). All ways take turns, and figures are medians over the rounds.

"padded" computes rectangles: shorter sequences are filled up with padding tokens, and only the cost is looked at.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from predictor_models import write_mlp, write_resnet
from predictor_ways import Sequences, Way, own_ways, traffic

from aie.version import versions
from aie_engine.executors import make_stateless_executor
from aie_engine.sizing import available_cores
from aie_loader import load_predictor, resolve
from aie_tensor import run_program

MINILM = "minilm-l6"
# With the default of 5 ms a batch is cut before all 32 clients have their answers to the one before: two groups of
# clients then take turns. Whoever waits for both fills the batches, for a longer way and about the same throughput.
PATIENT = "--max-wait-ms 20"
PEER_WAYS = {
    "onnxruntime": (("arrival", 1), ("sorted", 8), ("sorted", 32)),
    "transformers": (("sorted", 8), ("sorted", 32)),
}


def measure_http(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """The tables, as `aie bench` prints them, and what they say in a line."""
    models: tuple[tuple[str, str, str], ...] = (
        ("mlp", str(write_mlp(folder / "mlp")), "infer"),
        (MINILM, MINILM, "embeddings"),
        ("resnet", str(write_resnet(folder / "resnet")), "infer"),
    )
    reports: dict[str, object] = {}
    for name, model, endpoint in models:
        print(f"\n{name}\n", flush=True)
        reports[name] = report = run_bench(folder / f"{name}.json", model, endpoint, options, options.concurrency)
        rates = {level["concurrency"]: level["requests_per_s"] for level in report["levels"]}
        filled = {level["concurrency"]: level["window"]["utilisation"] for level in report["levels"]}
        if {1, 8, 32} <= rates.keys() and rates[1]:
            at_32 = "unknown" if filled[32] is None else f"{filled[32]:.0%}"
            print(
                f"→ {rates[8] / rates[1]:.1f} × from 1 to 8 clients; at 32: {rates[32]:.0f} requests/s, batches "
                f"{at_32} full"
            )
        if name == "mlp":
            print(f"\n{name}, with {PATIENT}: 32 clients come back within that time\n", flush=True)
            patient = run_bench(folder / "patient.json", model, endpoint, options, "32", PATIENT)
            reports[f"{name}, patient"] = patient
    return reports


def run_bench(
    path: Path, model: str, endpoint: str, options: argparse.Namespace, concurrency: str, serve_args: str = ""
) -> dict:
    """What `aie bench` wrote to `path`."""
    command = [
        sys.executable, "-m", "aie", "bench", "--model", model, "--endpoint", endpoint, "--concurrency", concurrency,
        "--duration", str(options.duration), f"--serve-args={options.serve_args} {serve_args}".rstrip(), "--json",
        str(path),
    ]  # fmt: skip
    code = subprocess.run(command, check=False).returncode
    if not path.exists():
        raise SystemExit(f"aie bench ended with {code}")
    return dict(json.loads(path.read_text()))


def timed(run: Way, sequences: Sequences) -> float:
    """Seconds."""
    began = time.perf_counter()
    run(sequences)
    return time.perf_counter() - began


class Peer:
    """Another Python that runs `predictors_peer.py`."""

    def __init__(self, python: str, model: Path, sequences: Path, onnx: Path, threads: int, out: Path) -> None:
        self.out = out
        script = Path(__file__).with_name("predictors_peer.py")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [python, str(script), "--model", str(model), "--sequences", str(sequences), "--onnx", str(onnx),
             "--threads", str(threads), "--out", str(out)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        offer = self._read()
        self.versions: dict[str, str] = offer["versions"]
        self.ways = [tuple(way) for way in offer["ways"]]

    def run(self, way: Sequence[object], name: str) -> float:
        """Seconds. The vectors lie in `out`."""
        assert self.process.stdin is not None
        print(json.dumps([*way, name]), file=self.process.stdin, flush=True)
        return float(self._read()["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[0]} ended with {self.process.wait()}")  # type: ignore[index]
        return json.loads(line)


@contextmanager
def peers(options: argparse.Namespace, model: Path, folder: Path, threads: int) -> Iterator[list[Peer]]:
    """All that were named."""
    with ExitStack() as stack:
        started = []
        onnx = options.onnx or folder / "minilm.onnx"
        for number, python in enumerate(options.peer_python):
            peer = Peer(python, model, folder / "sequences.json", onnx, threads, folder / f"peer{number}.npy")
            stack.callback(peer.close)
            started.append(peer)
        yield started


def measure_engine(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Sequences/s by way and traffic."""
    threads = options.threads or available_cores()
    path = resolve(MINILM)
    all_traffic = traffic(options.sequences, seed=1)
    (folder / "sequences.json").write_text(json.dumps(all_traffic))
    predictor = load_predictor(path)
    executor = make_stateless_executor(predictor.graph, kernels="native", num_threads=threads, max_tokens=4096)
    times: dict[tuple[str, str], list[float]] = {}
    ours = own_ways(predictor, executor)
    with peers(options, path, folder, threads) as others:
        known = {library: peer for peer in reversed(others) for library in {way[0] for way in peer.ways}}
        theirs = {
            f"{library}, {order}, {size}": (peer, (library, order, size))
            for library, peer in sorted(known.items())
            for order, size in PEER_WAYS[library]
        }
        expected = ours["ours, packed, 32"](all_traffic["lognormal"])
        for name in ("ours, packed, 8", "ours, one by one"):
            if not np.array_equal(ours[name](all_traffic["lognormal"]), expected):
                raise SystemExit(f"{name}: other bits than in batches of 32")
        for name, (peer, way) in theirs.items():  # a warm-up, and whether they compute the same
            peer.run(way, "lognormal")
            off = float(np.abs(np.load(peer.out) - expected).max())
            if off > 1e-4:
                raise SystemExit(f"{name}: the vectors differ by {off:g}; the models are not the same")
        runs: dict[str, Callable[[str], float]] = {
            **{name: lambda kind, run=run: timed(run, all_traffic[kind]) for name, run in ours.items()},  # type: ignore[misc]
            **{name: lambda kind, peer=peer, way=way: peer.run(way, kind) for name, (peer, way) in theirs.items()},  # type: ignore[misc]
        }
        names = list(runs)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            for kind in all_traffic:
                for name in names[number % len(names) :] + names[: number % len(names)]:  # each begins once
                    times.setdefault((name, kind), []).append(runs[name](kind))
        found = {name: number for peer in others for name, number in peer.versions.items()}
    executor.close()
    rates = {
        kind: {name: options.sequences / median(times[name, kind]) for name in [*ours, *theirs]} for kind in all_traffic
    }
    show_engine(rates, all_traffic["lognormal"], threads, options.rounds, versions() | found)
    return {"threads": threads, "versions": versions() | found, "sequences_per_s": rates}


def show_engine(
    rates: dict[str, dict[str, float]], sequences: Sequences, threads: int, rounds: int, found: dict[str, str]
) -> None:
    """The table and the ratios that it is about."""
    lengths = sorted(map(len, sequences))
    print(
        f"\n{MINILM}, {len(lengths)} sequences of {sum(lengths) / len(lengths):.1f} tokens (median "
        f"{lengths[len(lengths) // 2]}, longest {lengths[-1]}), {threads} threads, medians of {rounds} rounds\n"
    )
    print(f"{'sequences/s':<30}{'lognormal lengths':>20}{'equal lengths':>16}")
    for name, rate in rates["lognormal"].items():
        print(f"{name:<30}{rate:>20.1f}{rates['equal'][name]:>16.1f}")
    mine = "ours, packed, 32"
    print(f"\n{mine} over …")
    best = {
        library: max((name for name in rates["lognormal"] if name.startswith(library)), default=None,
                     key=lambda name: rates["lognormal"][name])
        for library in PEER_WAYS
    }  # fmt: skip
    for name in ["ours, padded, 32", "ours, padded, 8", *filter(None, best.values())]:
        ratios = [rates[kind][mine] / rates[kind][name] for kind in ("lognormal", "equal")]
        print(
            f"{name + ('' if name.startswith('ours') else ' (its best)'):<38}{ratios[0]:>10.2f} ×{ratios[1]:>14.2f} ×"
        )
    print("\n" + " · ".join(f"{name} {number}" for name, number in found.items()))


def main(argv: Sequence[str] | None = None) -> int:
    """0 when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("http", "engine"))
    parser.add_argument("--concurrency", default="1,8,32,64")
    parser.add_argument("--duration", type=float, default=4.0, help="seconds per level")
    parser.add_argument("--serve-args", default="", help="flags for `aie serve`")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of every library; the cores there are")
    parser.add_argument("--peer-python", action="append", default=[], metavar="PATH")
    parser.add_argument("--onnx", type=Path, help="MiniLM with inputs ids, mask and one output: pooled, normalised")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args(argv)
    figures: dict[str, object] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "versions": versions()}
    with tempfile.TemporaryDirectory(prefix="aie-predictors-") as scratch:
        if options.only != "engine":
            figures["http"] = measure_http(Path(scratch), options)
        if options.only != "http":
            figures["engine"] = measure_engine(Path(scratch), options)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run_program(main)
