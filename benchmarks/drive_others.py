"""`aie bench` against servers of others, unchanged: `python benchmarks/drive_others.py`.

    python benchmarks/race.py --set-up llama,vllm              once: install them (minutes)
    python benchmarks/drive_others.py                          ours, llama-server and vLLM, one after another
    python benchmarks/drive_others.py --with llama             one of them
    python benchmarks/drive_others.py --url http://127.0.0.1:8000 --name mine      one that runs already

Each is asked for completions and for chats, in the closed loop and in the open one, with clients that hang up and in
conversations of two turns. What must hold: exit code 0, every request answered in full (or hung up on, as asked), as
many tokens as were asked for and counted by the server itself, and times in the order in which things happen. One table
per server, with what its own metrics told; the exit code is 1 where something does not hold. Speeds are shown and not
judged: `race.py` is for that.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from race import running
from race_peers import Peers, default_folder

from aie_engine.sizing import available_cores

SERVERS = ("aie", "llama", "vllm")
TOKENS_OUT = 24
LIMIT_S = 180.0  # of one run
WAYS: Mapping[str, Sequence[str]] = {
    "completions, 4 clients": ["--concurrency", "4", "--requests", "8"],
    "completions, 2/s": ["--rate", "2", "--requests", "8"],
    "chat, 4 clients": ["--endpoint", "chat", "--concurrency", "4", "--requests", "8"],
    "chat, 2/s": ["--endpoint", "chat", "--rate", "2", "--requests", "8"],
    "chat, half hang up": ["--endpoint", "chat", "--concurrency", "4", "--requests", "8", "--cancel", "0.5@6tok"],
    "chat, 2 turns": ["--endpoint", "chat", "--concurrency", "2", "--requests", "8", "--turns", "2"],
}
COLUMNS = ("way", "answered", "hung up", "tokens", "TTFR p50", "TTFT p50", "TPOT p50", "E2E p50", "holds")


@dataclass(slots=True)
class Driven:
    """One run. faults: what did not hold."""

    way: str
    level: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        level = self.level
        if not level:
            return [self.way, *["–"] * (len(COLUMNS) - 2), "no"]
        times = [f"{level[name]['p50']:.1f}" if level[name]["p50"] is not None else "–"
                 for name in ("ttfr", "ttft", "tpot", "e2e")]  # fmt: skip
        return [self.way, f"{level['answered']}/{level['requests']}", str(level["ends"]["cancelled"]),
                str(level["output_tokens"]), *times, "no" if self.faults else "yes"]  # fmt: skip


def drive(url: str, way: str, folder: Path) -> Driven:
    """One run of `aie bench` and what is wrong with it."""
    driven = Driven(way)
    json_path, rows_path = folder / "run.json", folder / "run.rows"
    for path in (json_path, rows_path):
        path.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "aie", "bench", "--url", url, *WAYS[way], "--input-tokens", "32-64", "--output-tokens",
        str(TOKENS_OUT), "--timeout-s", "60", "--json", str(json_path), "--rows", str(rows_path),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        driven.faults.append(f"no end after {LIMIT_S:g} s")
        return driven
    if done.returncode != 0:
        driven.faults.append(f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or ['silence'])[-1]}")
    if json_path.exists() and rows_path.exists():
        [driven.level] = json.loads(json_path.read_text())["levels"]
        if "--cancel" in WAYS[way] and not driven.level["ends"]["cancelled"]:
            driven.faults.append("nobody hung up")
        driven.faults += judge(driven.level, [json.loads(line) for line in rows_path.read_text().splitlines()])
    return driven


def judge(level: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What does not hold, in a line each."""
    ends = level["ends"]
    if level["requests"] != ends["answered"] + ends["cancelled"]:
        yield f"{level['failed']} of {level['requests']} not answered: {level['errors']}"
    if level["uncounted"]:
        yield f"of {level['uncounted']} answers the server did not count the tokens"
    answered = [row for row in rows if row["end"] == "answered"]
    if short := sum(row["output_tokens"] != TOKENS_OUT for row in answered):
        yield f"{short} answers were not of {TOKENS_OUT} tokens"
    if silent := sum(row["prompt_tokens"] < 1 for row in answered):
        yield f"of {silent} prompts the server did not count the tokens"
    order = ("sent_s", "first_byte_s", "first_token_s", "end_s")
    if odd := sum(not all(row[a] <= row[b] for a, b in pairwise(order)) for row in answered):
        yield f"in {odd} answers times are not in their order"


def table(title: str, runs: Sequence[Driven]) -> str:
    """Markdown, and below it what did not hold."""
    lines = [f"## {title}", "", f"| {' | '.join(COLUMNS)} |", f"| --- |{' ---: |' * (len(COLUMNS) - 2)} --- |"]
    lines += [f"| {' | '.join(run.cells)} |" for run in runs]
    told = sorted(
        {name for run in runs for name, value in (run.level.get("server") or {}).items() if value is not None}
    )
    lines += ["", f"Times in ms. Its own metrics told: {', '.join(told) or 'nothing'}."]
    lines += [f"- {run.way}: {fault}" for run in runs for fault in run.faults]
    return "\n".join(lines)


@contextmanager
def reached(name: str, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Title and URL of a server that is started, or of the one that runs already."""
    if options.url is not None:
        yield name, options.url
        return
    contender = Peers(options.peers, available_cores()).contender(name)
    if name == "vllm":  # what it is asked is the same without the minutes that it compiles for
        contender = replace(contender, command=f"{contender.command} --enforce-eager --max-model-len 2048")
    with running(contender) as target:
        yield f"{contender.name} ({contender.version})", target.endpoint.url


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="names", default=",".join(SERVERS), help=f"of {', '.join(SERVERS)}; by comma")
    parser.add_argument("--url", help="a server that runs already, instead of those")
    parser.add_argument("--name", default="another server", help="with --url: what it is called")
    parser.add_argument("--peers", type=Path, default=default_folder(), help="folder of their environments and files")
    parser.add_argument("--report", type=Path, help="also write the tables to this file, as Markdown")
    options = parser.parse_args()
    names = [options.name] if options.url is not None else options.names.split(",")
    if options.url is None and (unknown := set(names) - set(SERVERS)):
        parser.error(f"--with does not know {', '.join(sorted(unknown))}")
    tables, num_faults = ["# `aie bench` against servers of others\n"], 0
    with tempfile.TemporaryDirectory(prefix="drive-") as folder:
        for name in names:
            with reached(name, options) as (title, url):
                runs = [drive(url, way, Path(folder)) for way in WAYS]
            num_faults += sum(len(run.faults) for run in runs)
            tables.append(table(title, runs) + "\n")
            print(tables[-1], flush=True)
    if options.report is not None:
        options.report.write_text("\n".join(tables))
    return int(num_faults > 0)


if __name__ == "__main__":
    sys.exit(main())
