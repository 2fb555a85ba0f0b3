"""`aie bench` and `vllm bench serve` on the same traffic, and what each says of it in the same terms."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from bench_truth_figures import Request, kind_of
from race_peers import Peers
from scripted_server import Served

__all__ = ["PARTS", "Load", "Said", "Vllm", "ask_aie", "truth_of"]

PARTS = ("mean", "p50", "p90", "p99")
TIMEOUT_S = 30.0
_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}  # ours and theirs


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of both. rate: requests per second, in the open loop; most: requests under way; clients: of the
    closed loop; burstiness: of gamma distributed gaps, inf for an even beat."""

    requests: int
    rate: float | None = None
    clients: int | None = None
    most: int | None = None
    burstiness: float = 1.0
    chat: bool = False
    seed: int = 0
    tokens: tuple[int, int] = (32, 32)  # in, out


@dataclass(frozen=True, slots=True)
class Said:
    """times: such as ttft.p50, in milliseconds. None where nothing is said. tokens: of all prompts."""

    requests: int
    answered: int
    times: Mapping[str, float | None] = field(default_factory=dict)
    tokens: int = 0


def ask_aie(url: str, load: Load, json_path: Path) -> Said:
    """Raises SystemExit where it writes no figures."""
    arguments = ["--requests", str(load.requests), "--seed", str(load.seed)]
    if load.rate is not None:
        arguments += ["--rate", str(load.rate)]
        if load.burstiness == float("inf"):
            arguments += ["--arrivals", "constant"]
        elif load.burstiness != 1.0:
            arguments += ["--arrivals", "gamma", "--burstiness", str(load.burstiness)]
        if load.most is not None:
            arguments += ["--max-in-flight", str(load.most)]
    else:
        arguments += ["--concurrency", str(load.clients)]
    command = [
        sys.executable, "-m", "aie", "bench", "--url", url, "--endpoint", "chat" if load.chat else "completions",
        "--input-tokens", str(load.tokens[0]), "--output-tokens", str(load.tokens[1]), "--timeout-s", str(TIMEOUT_S),
        "--json", str(json_path), *arguments,
    ]  # fmt: skip
    json_path.unlink(missing_ok=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if not json_path.exists():
        raise SystemExit(f"aie bench ended with {done.returncode}:\n{done.stderr[-2000:]}")
    [level] = json.loads(json_path.read_text())["levels"]
    times = {f"{name}.{part}": level[name][part] for name in _METRICS for part in (*PARTS, "max")}
    if load.rate is not None:
        times |= {f"due_e2e.{part}": level["due_e2e"][part] for part in ("mean", "max")}
    return Said(level["requests"], level["answered"], times, level["prompt_tokens"])


class Vllm:
    """Their load generator, from the environment of the peers. Raises SystemExit where it is not installed."""

    def __init__(self, peers: Peers) -> None:
        self.version = peers.contender("vllm").version
        self._program = peers.folder / "vllm" / "bin" / "vllm"
        self._tokenizer = peers.safetensors

    def ask(self, url: str, model: str, load: Load, json_path: Path, prompts: Sequence[str] = ()) -> Said:
        """prompts: what is sent, in this order; without them random tokens of the length asked for. A first request, to
        see whether the server is there, is counted by nobody."""
        path = "/v1/chat/completions" if load.chat else "/v1/completions"
        command = [
            str(self._program), "bench", "serve", "--backend", "openai-chat" if load.chat else "openai", "--base-url",
            url, "--endpoint", path, "--model", model, "--tokenizer", str(self._tokenizer), "--ignore-eos",
            "--temperature", "0", "--num-prompts", str(load.requests), "--seed", str(load.seed), "--percentile-metrics",
            "ttft,tpot,e2el", "--metric-percentiles", "50,90,99,100", "--save-result", "--result-dir",
            str(json_path.parent), "--result-filename", json_path.name, "--disable-tqdm",
        ]  # fmt: skip
        if prompts:
            data_path = json_path.with_suffix(".jsonl")
            data_path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
            command += ["--dataset-name", "custom", "--dataset-path", str(data_path), "--custom-output-len",
                        str(load.tokens[1]), "--skip-chat-template", "--disable-shuffle"]  # fmt: skip
        else:
            command += ["--dataset-name", "random", "--random-input-len", str(load.tokens[0]), "--random-output-len",
                        str(load.tokens[1])]  # fmt: skip
        if load.rate is not None:
            command += ["--request-rate", str(load.rate), "--burstiness", str(load.burstiness)]
        if (most := load.most or load.clients) is not None:
            command += ["--max-concurrency", str(most)]
        json_path.unlink(missing_ok=True)
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if not json_path.exists():
            raise SystemExit(f"vllm bench serve ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found = json.loads(json_path.read_text())
        times = {
            f"{ours}.{part}": found.get(f"mean_{theirs}_ms" if part == "mean" else f"{part}_{theirs}_ms")
            for ours, theirs in _METRICS.items()
            for part in PARTS
        }
        times |= {f"{ours}.max": found.get(f"p100_{theirs}_ms") for ours, theirs in _METRICS.items()}
        return Said(load.requests, found["completed"], times, found["total_input_tokens"])


def truth_of(records: Sequence[Served], load: Load) -> Said:
    """From the notes of the scripted server; requests before the last ones were to warm up. From schedule only for an
    even beat, whose first request is sent when it is due."""
    served = records[-load.requests :]
    requests = [Request(one, kind_of(one, TIMEOUT_S)) for one in served]
    answered = [one for one in requests if one.kind == "answered"]
    samples = {
        "ttft": [one.ttft_s for one in answered if one.ttft_s is not None],
        "tpot": [one.tpot_s for one in answered if one.tpot_s is not None],
        "e2e": [one.e2e_s for one in answered],
    }
    if load.rate is not None and load.burstiness == float("inf"):
        first_s = served[0].arrival_s
        samples["due_e2e"] = [one.end_s - first_s - number / load.rate for number, one in enumerate(served)]
    times = {
        f"{name}.{part}": 1e3 * value
        for name, values in samples.items()
        for part, value in (
            ("mean", fmean(values)),
            *((f"p{p}", sorted(values)[-(-p * len(values) // 100) - 1]) for p in (50, 90, 99)),
            ("max", max(values)),
        )
    }
    return Said(len(served), len(answered), times)
