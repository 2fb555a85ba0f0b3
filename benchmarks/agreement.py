"""`aie bench` beside `vllm bench serve`, a load generator written by others: `python benchmarks/agreement.py`.

    python benchmarks/race.py --set-up vllm                    once: install it (minutes, large)
    python benchmarks/agreement.py                             three to four minutes; writes reports/agreement.md
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

from aie.bench.streaming_plan import Traffic
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
    """One figure. truth: of either run, whose servers may have been a little late at other moments; None where only the
    two can be compared. must_agree: also with each other."""

    name: str
    ours: float | None
    theirs: float | None
    truth: tuple[float, float] | None = None
    must_agree: bool = False

    @property
    def off(self) -> tuple[float | None, float | None]:
        """How far either is from its truth, as a share of it; without one, from theirs."""
        if self.truth is not None:
            return _off(self.ours, self.truth[0]), _off(self.theirs, self.truth[1])
        return _off(self.ours, self.theirs), _off(self.theirs, self.theirs)

    @property
    def is_wrong(self) -> bool:
        """Ours off the truth; or the two off each other, where theirs is right, too."""
        ours, theirs = self.off
        if ours is None or abs(ours) > WITHIN:
            return True
        return self.must_agree and (theirs is None or (abs(theirs) <= WITHIN and abs(ours - theirs) > WITHIN))

    @property
    def finding(self) -> str:
        """In words."""
        theirs = self.off[1]
        if self.is_wrong:
            return "WRONG"
        if theirs is not None and abs(theirs) > WITHIN:
            return "aie bench is right, theirs is not"
        return "agree" if self.must_agree else "both are right"


def _off(value: float | None, against: float | None) -> float | None:
    return None if value is None or not against else value / against - 1


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


def _both(truth: Sequence[Said], key: str) -> tuple[float, float]:
    """Of either run."""
    ours, theirs = (one.times[key] for one in truth)
    assert ours is not None and theirs is not None
    return ours, theirs


def agreeing(name: str, load: Load, both: Both, spans: "Spans") -> Section:
    truth, (ours, theirs), records = both.ask(plain_scripts(load.requests), load)
    if load.rate is not None:
        spans.add(records, load)
    lines = [Line(key, ours.times[key], theirs.times[key], _both(truth, key), must_agree=True) for key in AGREE]
    shape = f"{load.rate:g} requests/s, Poisson" if load.rate is not None else f"{load.clients} clients"
    return Section(name, f"Where both are right: {load.requests} requests, {shape}, from sending, in ms.", lines)


def capped(both: Both) -> Section:
    load = Load(16, rate=CAP_RATE, most=1, burstiness=math.inf)
    truth, (ours, theirs), _ = both.ask([even_script(50.0, (SERVICE_MS - 50.0) / 9, 10)], load)
    lines = [
        Line(f"E2E from schedule, {part}", ours.times[f"due_e2e.{part}"], theirs.times[f"e2e.{part}"],
             _both(truth, f"due_e2e.{part}"))
        for part in ("mean", "max")
    ]  # fmt: skip
    return Section(
        "cap",
        f"{CAP_RATE:g} requests/s to a server that takes {SERVICE_MS:g} ms, one in flight at most: what users wait, in "
        "ms. Theirs is known to begin to count when a request may be sent.",
        lines,
    )


def failures(both: Both, spans: "Spans") -> Section:
    load = Load(100, rate=50.0, seed=1)
    truth, (ours, theirs), records = both.ask(failing(), load)
    spans.add(records, load)
    lines = [
        Line(name, count(ours), count(theirs), (count(truth[0]), count(truth[1])))
        for name, count in {
            "requests": lambda said: said.requests, "answered": lambda said: said.answered,
            "not answered": lambda said: said.requests - said.answered,
        }.items()
    ]  # fmt: skip
    return Section(
        "failures",
        "Of ten requests two are refused (503), one stream is reset, one ends with an error event. Theirs is "
        "known to take a stream with an error in it for an answer.",
        lines,
    )


def role(both: Both, spans: "Spans") -> Section:
    load = Load(100, rate=50.0, chat=True, seed=2)
    truth, (ours, theirs), records = both.ask([even_script(FIRST_MS, 10.0, 10, role_ms=ROLE_MS)], load)
    spans.add(records, load)
    lines = [Line(key, ours.times[key], theirs.times[key], _both(truth, key)) for key in ("ttft.mean", "tpot.mean")]
    return Section(
        "role",
        f"A chat whose first event, after {ROLE_MS:g} ms, says only who speaks, and whose text begins after "
        f"{FIRST_MS:g} ms. Theirs is known to take the first event for the first token, and so the wait for the text "
        "for part of the TPOT.",
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


def _prompts_of_aie(load: Load) -> list[str]:
    """Those that `aie bench` sends for the same seed and number of clients."""
    assert load.clients is not None
    traffic = Traffic((load.tokens[0],) * 2, (load.tokens[1],) * 2, seed=load.seed)
    return [request.prompt for request in traffic.requests(load.requests, load.clients)]


def server(both: Both, rounds: int) -> Section:
    """Both in turns on our own server; what is compared are the means over the rounds."""
    load = Load(20, clients=1, tokens=(128, 32))
    found: tuple[list[Said], list[Said]] = ([], [])
    with own_server(["--speculate", "0", "--no-prefix-cache"]) as (url, _):
        model = reach(url, None, None).model
        for number in range(rounds):
            same = Load(load.requests, clients=1, tokens=load.tokens, seed=number)
            for is_theirs in (False, True) if number % 2 == 0 else (True, False):  # what drifts goes to neither
                if is_theirs:
                    prompts = _prompts_of_aie(same)
                    found[1].append(both.vllm.ask(url, model, same, both.folder / "vllm.json", prompts))
                else:
                    found[0].append(ask_aie(url, same, both.folder / "aie.json"))
    tokens = [float(sum(said.tokens for said in one)) for one in found]
    lines = [Line("tokens of all prompts", tokens[0], tokens[1], (tokens[1], tokens[1]))]
    for key in ("ttft.mean", "tpot.mean", "e2e.mean", "ttft.p50", "tpot.p50", "e2e.p50"):
        ours, theirs = (fmean(said.times[key] or math.nan for said in one) for one in found)
        lines.append(Line(key, ours, theirs, must_agree=True))
    return Section(
        "server",
        f"aie serve with the default model, one client, 128 tokens in and 32 out, means over {rounds} alternating runs "
        f"of {load.requests} requests, in ms, with the same prompts.",
        lines,
    )


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"


def _percent(off: float | None) -> str:
    return "–" if off is None else f"{off:+.1%}"


def markdown(sections: Sequence[Section], spans: Spans, version: str, command: str) -> str:
    lines = ["# `aie bench` beside `vllm bench serve`", ""]
    lines += ["Off: from the truth, as the scripted server noted it; where there is none, from each other.", ""]
    for section in sections:
        lines += [f"## {section.name}", "", section.about, "",
                  "| figure | truth | aie bench | off | vllm bench serve | off | |",
                  "| --- | ---: | ---: | ---: | ---: | ---: | --- |"]  # fmt: skip
        for one in section.lines:
            truth = None if one.truth is None else one.truth[0]
            cells = [one.name, _cell(truth), _cell(one.ours), _percent(one.off[0]), _cell(one.theirs),
                     _percent(one.off[1]), one.finding]  # fmt: skip
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
            "open": lambda: agreeing("open", Load(700, rate=60.0), both, spans),
            "closed": lambda: agreeing("closed", Load(700, clients=32), both, spans),
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
