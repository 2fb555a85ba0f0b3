"""The same experiments on a model that answers at once: an encoder, a classifier, an image model."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from aie.bench.workload import words
from aie.doctor.asking import Answer, Asker
from aie.doctor.loop import LEVELS, closed_loop, level_seconds, load_of
from aie.doctor.measured import FirstRequests, Load, MemoryRounds, Predictions, Spikes
from aie.doctor.memory_rounds import MemoryGauge, run_rounds
from aie.doctor.probe import FIRST_WORDS, Probe
from aie.doctor.processes import Process
from aie.doctor.server import Watch

__all__ = ["Inputs", "Predicting", "inputs_of"]

_SHORT, _USUAL, _LONG = 8, FIRST_WORDS, 160  # words
_STREAMS = 4
_PER_ROUND = 64  # inputs


@dataclass(frozen=True, slots=True)
class Inputs:
    """make: (words, number) → a question for `Asker.compute`. Other models than those of text have one length."""

    make: Callable[[int, int], object]
    is_text: bool


def inputs_of(asker: Asker) -> Inputs:
    """Raises `InvalidInputError` where the server does not say what the model takes. Not for coroutines."""
    from aie.bench.questions import ask_inputs, plan_questions

    if asker.kind == "embeddings":
        return Inputs(lambda count, number: words(count, random.Random(f"{count}/{number}")), True)
    tensors = ask_inputs(asker.endpoint, asker.model)
    is_text = tensors[0].datatype == "BYTES"

    def make(count: int, number: int) -> object:
        (question,) = plan_questions("predict", asker.model, tensors, 1, length=lambda _: count + 2, seed=number)
        return json.loads(question.body)

    return Inputs(make, is_text)


@dataclass(slots=True)
class Predicting:
    """As `Generating`. probe: None where it is not known yet how it is asked."""

    asker: Asker
    process: Process | None
    has_metrics: bool
    inputs: Inputs
    probe: Probe | None
    is_fresh: bool
    quick: bool = False

    async def first(self, until_s: float) -> list[FirstRequests]:
        """As of those that generate."""
        probe = self.probe
        if probe is None:  # it is of our own kind, and was not asked for numbers yet
            probe = await Probe.of(self.process, lambda: self._ask(_USUAL, 0, until_s))
        if probe.answer.error is not None:
            return []
        what = "request after the start" if self.is_fresh else "request that was sent"
        half_s = (time.perf_counter() + until_s) / 2
        found = [await self._against_next(probe, _USUAL, what, half_s)]
        if not self.is_fresh and self.inputs.is_text:
            long = await Probe.of(self.process, lambda: self._ask(_LONG, 0, until_s))
            if long.answer.error is None:
                found.append(await self._against_next(long, _LONG, f"input of {_LONG} words", until_s))
        return found

    async def _against_next(self, probe: Probe, length: int, what: str, until_s: float) -> FirstRequests:
        """A request, and those of its kind that come next."""
        later: list[float] = []
        for number in range(1, 9 if self.quick else 17):
            answer = await self._ask(length, number, until_s)
            if answer.error is None:
                later.append(answer.took_s)
            if time.perf_counter() > until_s:
                break
        return FirstRequests(probe.answer.took_s, later, what, "to the answer", probe.minor_faults, probe.major_faults)

    async def same(self, until_s: float) -> list[Predictions]:
        """Inputs of three lengths alone, again, among others that come at the same time, and in one request with
        longer ones."""
        cases = []
        for number, length in enumerate((_SHORT, _USUAL, _LONG)):
            alone, again = [await self._ask(length, number, until_s) for _ in range(2)]
            others = [self._ask(other, 700 + n, until_s) for n, other in enumerate((_LONG, 3, _USUAL, 90, 14, 60, 5))]
            among = (await asyncio.gather(*others, self._ask(length, number, until_s)))[-1]
            if alone.error or again.error or among.error:
                continue
            found = {"among requests of other lengths": among.numbers}
            if self.asker.kind == "embeddings":
                batch = [self.inputs.make(size, 800 + size) for size in (_LONG, 90, 3)]
                both = await self.asker.compute([self.inputs.make(length, number), *batch], until_s=until_s)
                if both.error is None:
                    found["in one request with longer inputs"] = both.numbers[: len(alone.numbers)]
            cases.append(Predictions(alone.numbers, again.numbers, found))
        return cases

    async def levels(self, until_s: float) -> list[Load]:
        """A closed loop of 1, 2, 4 and 8 clients."""
        found: list[Load] = []
        for number, clients in enumerate(LEVELS):
            begin_until_s = level_seconds(until_s, number)
            async with self._watch() as watch:
                start_s = time.perf_counter()
                answers = await closed_loop(lambda n: self._ask(_USUAL, 1000 + n, until_s), clients, begin_until_s)
            found.append(load_of(answers, clients, start_s, watch.window))
        return found

    async def memory(self, until_s: float) -> MemoryRounds | None:
        """Rounds of some inputs."""
        gauge = MemoryGauge(self.asker, self.process, self.has_metrics)
        return await run_rounds(lambda n: self._ask(_USUAL, 300 + n, until_s), gauge, _PER_ROUND, until_s)

    async def spikes(self, until_s: float) -> Spikes:
        """Short inputs, first alone, then while long ones arrive."""
        now = time.perf_counter()
        async with self._watch() as watch:
            half_s, end_s = now + 0.4 * (until_s - now), now + 0.9 * (until_s - now)
            steady = await closed_loop(lambda n: self._ask(_SHORT, 400 + n, until_s), _STREAMS, half_s)
            mixed: list[Answer] = []
            if self.inputs.is_text:
                arriving = asyncio.create_task(
                    closed_loop(lambda n: self._ask(_LONG, 500 + n, until_s), 1, end_s),
                )
                mixed = await closed_loop(lambda n: self._ask(_SHORT, 400 + n, until_s), _STREAMS, end_s)
                await arriving
        return Spikes(
            steady_s=[one.took_s for one in steady if one.error is None],
            mixed_s=[one.took_s for one in mixed if one.error is None],
            streams=_STREAMS,
            prompt_tokens=_LONG if self.inputs.is_text else 0,
            wall_s=time.perf_counter() - now,
            neighbours=watch.window.neighbours,
            of="answers",
            gc_pause_s=watch.window.collector("pause_s"),
            gc_runs=watch.window.collector("runs"),
        )

    async def _ask(self, length: int, number: int, until_s: float) -> Answer:
        return await self.asker.compute(self.inputs.make(length, number), until_s=until_s)

    def _watch(self) -> Watch:
        return Watch(self.asker.endpoint, self.asker.model, self.process, has_metrics=self.has_metrics)
