"""`aie bench` beside `vllm bench serve`, a load generator written by others: `python benchmarks/agreement.py`.

    python benchmarks/race.py --set-up vllm                    once: install it (minutes, large)
    python benchmarks/agreement.py                             three minutes; writes benchmarks/reports/agreement.md
    python benchmarks/agreement.py --only open,cap

Both send the same load to a server that answers by a script and notes what it did, so that there is a truth. Where
both measure the same thing (open, closed) TTFT, TPOT and E2E must agree within 3 %. Then what is known to be wrong over
there: the wait under a cap on requests in flight (cap), what failed (failures), the event without text that chats begin
with (role), and the gaps between requests, stretched until they have the mean asked for (gaps, of the open loads
before). Last both measure `aie serve` itself (server), in turns. The exit code is 1 where they disagree though both are
right, or where `aie bench` is more than 3 % off the truth.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from agreement_tools import PARTS, Load, Said, Vllm, ask_aie, truth_of
from bench_truth_scripts import even_script, plain_scripts
from race_peers import Peers, default_folder
from scripted_server import Script, Served, scripted_server

from aie.bench.target import own_server, reach
from aie.version import versions
from aie_engine.sizing import available_cores

WITHIN = 0.03
NAMES = ("open", "closed", "cap", "failures", "role", "server")
AGREE = tuple(f"{metric}.{part}" for metric in ("ttft", "tpot", "e2e") for part in PARTS)
SERVICE_MS, CAP_RATE = 500.0, 10.0
ROLE_MS, FIRST_MS = 5.0, 200.0
REPORT = Path(__file__).parent / "reports" / "agreement.md"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. truth: None where only the two can be compared; must: whether a difference is a failure."""

    name: str
    truth: float | None
    ours: float | None
    theirs: float | None
    must_agree: bool = False

    @property
    def is_wrong(self) -> bool:
        """Ours off the truth; or off theirs, where both are right."""
        against = ([self.truth] if self.truth is not None else []) + ([self.theirs] if self.must_agree else [])
        return self.ours is None or any(one is None or abs(self.ours - one) > WITHIN * abs(one) for one in against)


@dataclass(slots=True)
class Section:
    """One load and what came of it."""

    name: str
    about: str
    lines: list[Line] = field(default_factory=list)


def failing() -> list[Script]:
    """Of ten: six answers, two refusals, one stream that is reset, one that ends with an error event."""
    answer = even_script(50.0, 10.0, 10)
    refused = Script(((5.0, "status503"),))
    begun = answer.steps[:5]
    reset, error = Script((*begun, (10.0, "reset"))), Script((*begun, (10.0, "error"), (0.0, "done")))
    return [answer, answer, refused, answer, reset, answer, refused, answer, error, answer]


@dataclass(frozen=True, slots=True)
class Both:
    """The two generators."""

    vllm: Vllm
    folder: Path

    def ask(self, scripts: Sequence[Script], load: Load) -> tuple[list[Said], list[Said], list[list[Served]]]:
        """(truth of either run), (ours, theirs), (what the server noted)."""
        said, records = [], []
        for ask in (self._ours, self._theirs):
            with scripted_server(scripts) as server:
                said.append(ask(server.url, load))
            records.append(server.records)
        return [truth_of(one, load) for one in records], said, records

    def _ours(self, url: str, load: Load) -> Said:
        return ask_aie(url, load, self.folder / "aie.json")

    def _theirs(self, url: str, load: Load) -> Said:
        return self.vllm.ask(url, "scripted", load, self.folder / "vllm.json")


def agreeing(name: str, load: Load, both: Both, spans: "Spans") -> Section:
    truth, (ours, theirs), records = both.ask(plain_scripts(load.requests), load)
    if load.rate is not None:
        spans.add(records, load)
    lines = [
        Line(key, truth[0].times[key], ours.times[key], theirs.times[key], must_agree=True) for key in AGREE
    ]  # fmt: skip
    shape = f"{load.rate:g} requests/s, Poisson" if load.rate is not None else f"{load.clients} clients"
    return Section(name, f"Where both are right: {load.requests} requests, {shape}, from sending, in ms.", lines)


def capped(both: Both) -> Section:
    load = Load(24, rate=CAP_RATE, most=1, burstiness=math.inf)
    truth, (ours, theirs), _ = both.ask([even_script(50.0, (SERVICE_MS - 50.0) / 9, 10)], load)
    lines = [
        Line(f"E2E from schedule, {part}", truth[0].times[f"due_e2e.{part}"], ours.times[f"due_e2e.{part}"],
             theirs.times[f"e2e.{part}"])
        for part in ("mean", "max")
    ]  # fmt: skip
    return Section(
        "cap",
        f"{CAP_RATE:g} requests/s to a server that takes {SERVICE_MS:g} ms, one in flight at most: what users wait, in "
        "ms. Theirs begins to count when a request may be sent.",
        lines,
    )


def failures(both: Both, spans: "Spans") -> Section:
    load = Load(200, rate=50.0, seed=1)
    truth, (ours, theirs), records = both.ask(failing(), load)
    spans.add(records, load)
    lines = [
        Line("requests", truth[0].requests, ours.requests, theirs.requests),
        Line("answered", truth[0].answered, ours.answered, theirs.answered),
        Line("not answered", truth[0].requests - truth[0].answered, ours.requests - ours.answered,
             theirs.requests - theirs.answered),
    ]  # fmt: skip
    return Section(
        "failures",
        "Of ten requests two are refused (503), one stream is reset, one ends with an error event. Theirs takes a "
        "stream with an error in it for an answer.",
        lines,
    )


def role(both: Both, spans: "Spans") -> Section:
    load = Load(200, rate=50.0, chat=True, seed=2)
    truth, (ours, theirs), records = both.ask([even_script(FIRST_MS, 10.0, 10, role_ms=ROLE_MS)], load)
    spans.add(records, load)
    lines = [Line(key, truth[0].times[key], ours.times[key], theirs.times[key]) for key in ("ttft.mean", "tpot.mean")]
    return Section(
        "role",
        f"A chat whose first event, after {ROLE_MS:g} ms, says only who speaks, and whose text begins after "
        f"{FIRST_MS:g} ms. Theirs takes the first event for the first token, and so the wait for it for part of the "
        "TPOT.",
        lines,
    )


@dataclass(slots=True)
class Spans:
    """From the first request to the last, as a share of what the rate asks for on average, run by run."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    chance: list[float] = field(default_factory=list)  # standard deviation of true random arrivals

    def add(self, records: Sequence[Sequence[Served]], load: Load) -> None:
        assert load.rate is not None
        for found, one in zip((self.ours, self.theirs), records, strict=True):
            served = one[-load.requests :]
            found.append((served[-1].arrival_s - served[0].arrival_s) * load.rate / load.requests)
        self.chance.append(1 / math.sqrt(load.requests))

    def text(self) -> str:
        """For the report."""
        spread = ", ".join(f"± {one:.1%}" for one in self.chance)
        return (
            f"From the first request to the last, over requests / rate: aie bench {_shares(self.ours)}; vllm bench "
            f"serve {_shares(self.theirs)}; true Poisson arrivals have a standard deviation of {spread} here. Gaps "
            "that are stretched until they have the mean asked for are no Poisson arrivals."
        )


def server(both: Both, rounds: int) -> Section:
    """Both in turns on our own server; what is compared are the means over the rounds."""
    load = Load(20, clients=1, tokens=(128, 32))
    found: tuple[list[Said], list[Said]] = ([], [])
    with own_server(["--speculate", "0", "--no-prefix-cache"]) as (url, _):
        model = reach(url, None, None).model
        for number in range(rounds):
            same = Load(load.requests, clients=1, tokens=load.tokens, seed=number)
            found[0].append(ask_aie(url, same, both.folder / "aie.json"))
            found[1].append(both.vllm.ask(url, model, same, both.folder / "vllm.json"))
    lines = []
    for key in ("ttft.mean", "tpot.mean", "e2e.mean", "ttft.p50", "tpot.p50", "e2e.p50"):
        ours, theirs = (fmean(said.times[key] or math.nan for said in one) for one in found)
        lines.append(Line(key, None, ours, theirs, must_agree=True))
    return Section(
        "server",
        f"aie serve with the default model, one client, 128 tokens in and 32 out, means over {rounds} alternating runs "
        f"of {load.requests} requests, in ms. The prompts are not the same: words here, random tokens there.",
        lines,
    )


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"


def _off(value: float | None, against: float | None) -> str:
    return "–" if value is None or not against else f"{value / against - 1:+.1%}"


def markdown(sections: Sequence[Section], spans: Spans, version: str, command: str) -> str:
    lines = ["# `aie bench` beside `vllm bench serve`", ""]
    lines += ["Off: from the truth, as the scripted server noted it; where there is none, from each other.", ""]
    for section in sections:
        lines += [f"## {section.name}", "", section.about, "",
                  "| figure | truth | aie bench | off | vllm bench serve | off | |",
                  "| --- | ---: | ---: | ---: | ---: | ---: | --- |"]  # fmt: skip
        for one in section.lines:
            base = one.truth if one.truth is not None else one.theirs
            finding = "WRONG" if one.is_wrong else "agree" if one.must_agree else "aie bench is right"
            cells = [one.name, _cell(one.truth), _cell(one.ours), _off(one.ours, base), _cell(one.theirs),
                     _off(one.theirs, base), finding]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    if spans.ours:
        lines += ["## gaps", "", spans.text(), ""]
    lines += [f"- {version}; {', '.join(f'{name} {of}' for name, of in versions().items())}",
              f"- {available_cores()} cores; command: `{command}`", ""]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help=f"of {', '.join(NAMES)}; by comma")
    parser.add_argument("--peers", type=Path, default=default_folder(), help="folder of their environments and files")
    parser.add_argument("--rounds", type=int, default=2, help="of the comparison on aie serve")
    parser.add_argument("--report", type=Path, default=REPORT)
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"--only does not know {', '.join(sorted(unknown))}")
    vllm, spans = Vllm(Peers(options.peers, available_cores())), Spans()
    sections = []
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        both = Both(vllm, Path(folder))
        loads = {
            "open": lambda: agreeing("open", Load(800, rate=100.0), both, spans),
            "closed": lambda: agreeing("closed", Load(800, clients=32), both, spans),
            "cap": lambda: capped(both), "failures": lambda: failures(both, spans), "role": lambda: role(both, spans),
            "server": lambda: server(both, options.rounds),
        }  # fmt: skip
        for name in NAMES:
            if name in wanted:
                print(f"{name} …", file=sys.stderr, flush=True)
                sections.append(loads[name]())
    command = "python benchmarks/agreement.py" + (f" --only {options.only}" if len(wanted) < len(NAMES) else "")
    text = markdown(sections, spans, vllm.version, command)
    print(text)
    options.report.write_text(text)
    return int(any(line.is_wrong for section in sections for line in section.lines))


if __name__ == "__main__":
    sys.exit(main())
