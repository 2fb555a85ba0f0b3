"""Is what `aie bench` says true? Its figures against those of a server that knows: `python benchmarks/bench_truth.py`.

    python benchmarks/bench_truth.py                           everything, some two minutes on an idle machine
    python benchmarks/bench_truth.py --only poisson,cost       some of it
    python benchmarks/bench_truth.py --report benchmarks/reports/bench_truth.md

`scripted_server.c` answers 500 requests a second by scripts (first tokens after 20 to 120 ms, gaps of 5 to 30 ms,
events in halves, in pairs and with several tokens, stalls, 429, 503, 500, streams that are cut, reset or end with an
error, connections that are closed at once, answers that never come) and notes when it did what. From that alone every
figure of `aie bench --json` is computed once more: it must be right within 1 ms or 1 %, counts exactly. What is wrong
is printed (--full: everything); the exit code is 1 then. The load comes at an even beat, at random, in gamma bursts
with clients that hang up, forty at a time, and from 1, 32 and 128 clients that wait for each answer; at last it is
measured what the generator itself costs.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from bench_truth_cost import measure_cost
from bench_truth_figures import Request, Row, due_start_s, figures, matched
from bench_truth_scripts import HANG_UP_AFTER, mixed_scripts
from bench_truth_verdict import Compared, Finding, compare, lookup, markdown, shown
from scripted_server import Served, scripted_server

RATE = 500
TIMEOUT_S = 1.5
SLO_TTFT_S, SLO_TPOT_S = 0.09, 0.025

BURST, BURST_EVERY_MS = 40, 80  # 500 a second
GAMMA = 0.25
CLIENTS = {1: 70, 32: 1200, 128: 2400}  # requests


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of `aie bench`. spread: of the gaps between due times over their mean; None where `due` is known."""

    name: str
    arguments: list[str]
    due: Callable[[int], float] | None = None  # seconds after the start at which the k-th request must be due
    spread: float | None = None
    trace: str | None = None
    is_open: bool = True
    hangs_up: bool = False


def scenarios(seconds: float) -> list[Scenario]:
    rate = ["--rate", str(RATE), "--duration", str(seconds)]
    bursts = range(int(seconds * 1000 / BURST_EVERY_MS))
    trace = "".join(
        json.dumps({"timestamp": number * BURST_EVERY_MS, "input_length": 100, "output_length": 32}) + "\n"
        for number in bursts
        for _ in range(BURST)
    )
    leave = ["--cancel", f"0.1@{HANG_UP_AFTER}tok"]
    return [
        Scenario("constant", [*rate, "--arrivals", "constant"], due=lambda number: number / RATE),
        Scenario("poisson", [*rate, *leave], spread=1.0, hangs_up=True),
        Scenario("gamma", [*rate, "--arrivals", "gamma", "--burstiness", str(GAMMA), "--endpoint", "chat", *leave],
                 spread=1 / math.sqrt(GAMMA), hangs_up=True),
        Scenario("bursts", [], due=lambda number: number // BURST * BURST_EVERY_MS / 1e3, trace=trace),
        *(
            Scenario(f"closed-{clients}", ["--concurrency", str(clients), "--requests", str(count)], is_open=False)
            for clients, count in CLIENTS.items()
        ),
    ]  # fmt: skip


@dataclass(slots=True)
class Result:
    """What came of one scenario."""

    scenario: Scenario
    compared: list[Compared]
    remarks: list[str] = field(default_factory=list)


def run(scenario: Scenario, folder: Path, seed: int) -> Result:
    """Raises SystemExit where `aie bench` wrote no figures."""
    json_path, rows_path, trace_path = (folder / f"{scenario.name}.{end}" for end in ("json", "rows", "trace"))
    arguments = list(scenario.arguments)
    if scenario.trace is not None:
        trace_path.write_text(scenario.trace)
        arguments += ["--trace", str(trace_path)]
    with scripted_server(mixed_scripts(seed)) as server:
        command = [
            sys.executable, "-m", "aie", "bench", "--url", server.url, *arguments, "--timeout-s", str(TIMEOUT_S),
            "--slo", f"ttft<{SLO_TTFT_S * 1e3:g}ms,tpot<{SLO_TPOT_S * 1e3:g}ms", "--seed", str(seed),
            "--json", str(json_path), "--rows", str(rows_path),
        ]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if not rows_path.exists():
        raise SystemExit(f"aie bench ended with {done.returncode} and without figures:\n{done.stderr[-2000:]}")
    document = json.loads(json_path.read_text())
    [level] = document["levels"]
    rows = [json.loads(line) for line in rows_path.read_text().splitlines()]
    result = Result(scenario, [])
    bound = any("client-bound" in line for line in document["notes"])
    result.remarks.append(f"it used {level['client_cpu']:.0%} of a core" + bound * ", and calls itself client-bound")
    if done.returncode != 1:  # requests failed, as they were meant to
        result.compared.append(Compared("exit code", 1, done.returncode, Finding.WRONG))
    judge(result, level, rows, server.records)
    return result


def is_good(request: Request) -> bool:
    """Whether it keeps the SLO: time to first token from when it was due; a single token has no TPOT, and so its whole
    time stands in."""
    assert request.ttft_s is not None
    per_token_s = request.e2e_s if request.tpot_s is None else request.tpot_s
    return request.ttft_s + request.lag_s < SLO_TTFT_S and per_token_s < SLO_TPOT_S


def judge(result: Result, level: dict[str, object], rows: Sequence[Row], records: Sequence[Served]) -> None:
    """Every figure, the schedule, and how near single requests are."""
    scenario = result.scenario
    pairs = matched(rows, records, TIMEOUT_S)
    requests = [request for _, request in pairs]
    start_s = due_start_s(rows, records)
    for name, truth in figures(requests, start_s, is_good, is_open=scenario.is_open).items():
        result.compared.append(compare(name, truth, lookup(level, name)))
    if scenario.is_open:
        _judge_schedule(result, sorted(float(str(row["due_s"])) for row in rows))
    if scenario.hangs_up:
        seen = [len(one.served.texts) for one in requests if one.kind == "cancelled"]
        result.compared.append(compare("events before a hang-up", HANG_UP_AFTER, fmean(seen) if seen else None))
    single = [_worst_ms(row, request) for row, request in pairs if row is not None and request.kind == "answered"]
    near = sum(ms <= 1.0 for ms in single) / len(single)
    result.remarks.append(
        f"single requests: {near:.1%} have TTFR, TTFT and E2E within 1 ms; furthest off {max(single):.1f} ms"
    )
    late_ms = sorted(1e3 * one.served.lateness_s for one in requests)
    middle, tail = (late_ms[int(share * (len(late_ms) - 1))] for share in (0.5, 0.99))
    result.remarks.append(
        f"the server's own worst delay in a request was {middle:.2f} ms in the median, {tail:.2f} ms at P99"
    )


def _judge_schedule(result: Result, due: Sequence[float]) -> None:
    """Whether requests were due when they had to be, or at gaps of the right spread."""
    scenario = result.scenario
    if scenario.due is not None:
        worst_ms = max((1e3 * abs(at - scenario.due(number)) for number, at in enumerate(due)), default=0.0)
        result.compared.append(compare("furthest from its due time", 0.0, worst_ms))
    if scenario.spread is not None:
        gaps = [after - before for before, after in pairwise(due)]
        # Four standard errors; the excess kurtosis of gamma distributed gaps is six times their squared spread.
        error = 4 * scenario.spread / math.sqrt(len(gaps))
        error_of_spread = 4 * math.sqrt((6 * scenario.spread**2 + 2) / (4 * len(gaps)))
        for name, truth, found, room in (
            ("mean gap", 1e3 / RATE, 1e3 * fmean(gaps), error),
            ("spread of gaps", scenario.spread, stdev(gaps) / fmean(gaps), error_of_spread),
        ):
            finding = Finding.RIGHT if abs(found - truth) <= room * truth else Finding.WRONG
            result.compared.append(Compared(name, truth, found, finding))


def _worst_ms(row: Row, request: Request) -> float:
    """The largest of the differences of one request."""

    def of_row(name: str) -> float:
        return float(str(row[name])) - float(str(row["sent_s"]))

    truth = {"first_byte_s": request.ttfr_s, "first_token_s": request.ttft_s, "end_s": request.e2e_s}
    return max(1e3 * abs(of_row(name) - value) for name, value in truth.items() if value is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="scenarios by comma: constant, poisson, gamma, bursts, closed-1, …, cost")
    parser.add_argument("--seconds", type=float, default=8.0, help="of arrivals, in the open loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="print all figures, and not only those that are wrong")
    parser.add_argument("--report", type=Path, help="also write all figures to this file, as Markdown")
    options = parser.parse_args()
    known = scenarios(options.seconds)
    wanted = options.only.split(",") if options.only else [*(one.name for one in known), "cost"]
    if unknown := set(wanted) - {one.name for one in known} - {"cost"}:
        parser.error(f"--only does not know {', '.join(sorted(unknown))}")
    sections: list[tuple[str, list[Compared], list[str]]] = []
    with tempfile.TemporaryDirectory(prefix="bench-truth-") as folder:
        for scenario in known:
            if scenario.name in wanted:
                result = run(scenario, Path(folder), options.seed)
                sections.append((scenario.name, result.compared, result.remarks))
                print(shown(*sections[-1], full=options.full), flush=True)
        if "cost" in wanted:
            sections.append(("cost", *measure_cost(Path(folder))))
            print(shown(*sections[-1], full=True), flush=True)
    if options.report is not None:
        options.report.write_text(markdown(sections, RATE))
    wrong = sum(one.finding is Finding.WRONG for _, compared, _ in sections for one in compared)
    print(f"{sum(len(compared) for _, compared, _ in sections)} figures, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
