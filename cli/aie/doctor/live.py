"""The checks of a server one after another, each in its part of the time, each said as soon as it is judged."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from aie.bench.client import get_text
from aie.bench.target import own_server, reach
from aie.console import note
from aie.doctor.asking import NETWORK_ERRORS, Answer
from aie.doctor.connecting import Patient, connect_to
from aie.doctor.contention import judge_neighbours
from aie.doctor.finding import MORE_TIME, Finding, as_json, show
from aie.doctor.first_request import judge_first
from aie.doctor.generating import Generating
from aie.doctor.machine import judge_machine, read_machine
from aie.doctor.measured import Refusals
from aie.doctor.memory_growth import judge_memory
from aie.doctor.predicting import Predicting, inputs_of
from aie.doctor.refusals import judge_refusals
from aie.doctor.sameness import judge_company, judge_predictions
from aie.doctor.server import Watch
from aie.doctor.spikes import judge_spikes
from aie.doctor.throughput import judge_throughput
from aie.doctor.utilisation import judge_utilisation

__all__ = ["Report", "Wanted", "examine"]

_BUDGET_S, _QUICK_S = 55.0, 18.0  # in all
_LEAST_S = 12.0  # for the requests, however long the start took
_PARTS = {"first": 3.0, "same": 7.0, "levels": 15.0, "spikes": 13.0, "memory": 12.0}  # of the time
_SEE = "requests were not answered meanwhile: see refusals below"
_OVER_S = 3.0  # after which a check that does not heed its time is ended


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    model: str | None = None
    url: str | None = None
    quick: bool = False
    api_key: str | None = None
    serve_args: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """complete: False where Ctrl-C came before the last check."""

    url: str = ""
    model: str = ""
    server: str = ""
    seconds: float = 0.0
    complete: bool = False
    findings: list[Finding] = field(default_factory=list)

    def say(self, findings: Sequence[Finding]) -> None:
        """Keeps and prints them."""
        self.findings += findings
        show(findings)

    def as_json(self) -> dict[str, object]:
        return {
            "format": 1, "url": self.url, "model": self.model, "server": self.server, "seconds": round(self.seconds, 1),
            "complete": self.complete, "findings": as_json(self.findings),
        }  # fmt: skip


def examine(wanted: Wanted) -> Report:
    """Prints what it finds, and gives it back, after Ctrl-C as well. Raises what starting a server, or reaching one,
    raises."""
    report = Report()
    began_s = time.perf_counter()
    with ExitStack() as stack:
        patient = _patient(stack, wanted)
        report.url, report.model, report.server = patient.asker.endpoint.url, patient.asker.model, patient.server
        try:
            _examine(patient, wanted, report, began_s + (_QUICK_S if wanted.quick else _BUDGET_S))
            report.complete = True
        except KeyboardInterrupt:
            note("Interrupted. What was found before is above.")
        report.seconds = time.perf_counter() - began_s
    if report.complete:
        counts = Counter(finding.level for finding in report.findings)
        note(
            f"{len(report.findings)} checks in {report.seconds:.0f} s: {counts['bad']} bad, {counts['note']} to note, "
            f"{counts['ok']} ok."
        )
    return report


def _patient(stack: ExitStack, wanted: Wanted) -> Patient:
    """The server that runs, or one that is started here and stopped with `stack`."""
    if wanted.url is not None:
        return connect_to(reach(wanted.url, wanted.model, wanted.api_key), None)
    from aie.assemble import find_model

    find_model(wanted.model)  # pulls the default here, where its progress can be seen
    url, pid = stack.enter_context(own_server([*([wanted.model] if wanted.model else []), *wanted.serve_args]))
    return connect_to(reach(url, None, wanted.api_key, pid), pid)


def _examine(patient: Patient, wanted: Wanted, report: Report, end_s: float) -> None:
    seen = _Seen()
    patient = replace(patient, asker=replace(patient.asker, seen=seen.take))
    note(f"Looking at {patient.asker.model} ({patient.server}) at {patient.asker.endpoint.url} by {_how(patient)} …")
    if patient.process is not None:
        report.say(judge_machine(read_machine(patient.process.pid)))
    else:
        report.say([Finding("machine", "ok", "not looked at: the server is not on this machine, or not ours to see")])
    experiments: Generating | Predicting
    who = (patient.asker, patient.process, patient.has_metrics)
    if patient.asker.generates:
        assert patient.probe is not None
        experiments = Generating(*who, patient.probe, patient.is_fresh, patient.max_length, wanted.quick)
    else:
        inputs = inputs_of(patient.asker)
        experiments = Predicting(*who, inputs, patient.probe, patient.is_fresh, wanted.quick)
    end_s = max(end_s, time.perf_counter() + _LEAST_S)
    asyncio.run(_Checks(patient, experiments, seen, report).run(end_s))


def _how(patient: Patient) -> str:
    return f"/predict/{patient.asker.model}" if patient.asker.kind == "predict" else f"/v1/{_PATHS[patient.asker.kind]}"


_PATHS = {"completions": "completions", "chat": "chat/completions", "embeddings": "embeddings"}


class _Seen:
    """Counts what became of all requests."""

    def __init__(self) -> None:
        self.sent = 0
        self.statuses: Counter[int] = Counter()
        self.failed: Counter[str] = Counter()

    def take(self, answer: Answer) -> None:
        """One more."""
        self.sent += 1
        if answer.status in (429, 503) and answer.error is not None:
            self.statuses[answer.status] += 1
        elif answer.error is not None and not answer.is_late:
            self.failed[answer.error] += 1

    def refusals(self) -> Refusals:
        return Refusals(self.sent, self.statuses[429], self.statuses[503], dict(self.failed))

    @property
    def num_unanswered(self) -> int:
        return self.statuses.total() + self.failed.total()


@dataclass(slots=True)
class _Checks:
    patient: Patient
    experiments: Generating | Predicting
    seen: _Seen
    report: Report

    async def run(self, end_s: float) -> None:
        """All of them, by `end_s` on `time.perf_counter`. A check that ends early leaves its time to the others."""
        steps = {
            "first": ("first request", self._first),
            "same": ("same answer", self._same),
            "levels": ("batch utilisation, throughput", self._levels),
            "spikes": ("P99 spikes", self._spikes),
            "memory": ("memory", self._memory),
        }
        left = sum(_PARTS.values())
        async with Watch(
            self.patient.asker.endpoint, self.patient.asker.model, self.patient.process, has_metrics=False
        ) as watch:
            for name, (what, check) in steps.items():
                share_s = max(0.5, (end_s - time.perf_counter()) * _PARTS[name] / left)
                left -= _PARTS[name]
                note(f"  {what}: up to {share_s:.0f} s …")
                num_unanswered = self.seen.num_unanswered
                try:
                    async with asyncio.timeout(share_s + _OVER_S):
                        found = await check(time.perf_counter() + share_s)
                except TimeoutError:
                    found = [Finding(what, "note", "it was not done in the time there was", MORE_TIME)]
                if self.seen.num_unanswered > num_unanswered:  # then time was not what it lacked
                    found = [replace(one, change=_SEE) if one.change == MORE_TIME else one for one in found]
                self.report.say(found)
                if self.seen.num_unanswered > num_unanswered and not await self._is_there():
                    gone = f"it stopped answering while “{what}” was looked at"
                    self.report.say([Finding("server", "bad", gone, "its log says why")])
                    break
        self.report.say(judge_refusals(self.seen.refusals(), self.patient.server))
        self.report.say([judge_neighbours(watch.window.neighbours)])

    async def _is_there(self) -> bool:
        """Whether it takes connections still, be it to say that it is busy."""
        try:
            await get_text(self.patient.asker.endpoint, "/v1/models")
        except NETWORK_ERRORS:
            return False
        return True

    async def _first(self, until_s: float) -> list[Finding]:
        measured = await self.experiments.first(until_s)
        if not measured:
            return [Finding("first request", "bad", "it was not answered", "the server's log says why")]
        return [max(map(judge_first, measured), key=lambda finding: ("ok", "note", "bad").index(finding.level))]

    async def _same(self, until_s: float) -> list[Finding]:
        if isinstance(self.experiments, Generating):
            return [judge_company(await self.experiments.same(until_s))]
        return [judge_predictions(await self.experiments.same(until_s))]

    async def _levels(self, until_s: float) -> list[Finding]:
        loads = await self.experiments.levels(until_s)
        unit = "tokens/s" if self.patient.asker.generates else "inputs/s"
        server = self.patient.server
        return [
            judge_utilisation(loads[-1] if loads else None, server),
            judge_throughput(loads, server, unit, self.seen.refusals()),
        ]

    async def _spikes(self, until_s: float) -> list[Finding]:
        return [judge_spikes(await self.experiments.spikes(until_s), self.patient.server)]

    async def _memory(self, until_s: float) -> list[Finding]:
        measured = await self.experiments.memory(until_s)
        if measured is None:
            text = "does not apply: the server is not on this machine, and its /metrics tell no memory"
            return [Finding("memory", "note", text)]
        return [judge_memory(measured, self.patient.server, self.patient.asker.endpoint.url)]
