"""The experiments on a server that generates text: what is sent, and the numbers that come of it. All are bounded in
time: `until_s` is on `time.perf_counter`, and what is not answered by then is given up."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from aie.doctor.asking import Answer, Asker
from aie.doctor.loop import closed_loop, load_of
from aie.doctor.measured import Company, FirstRequests, Load, MemoryRounds, Spikes
from aie.doctor.memory_rounds import MemoryGauge, run_rounds
from aie.doctor.probe import FIRST_ANSWER, FIRST_TOKENS, Probe, text_of
from aie.doctor.sameness import parting
from aie.doctor.server import Process, Watch

__all__ = ["Generating", "level_seconds"]

LEVELS = (1, 2, 4, 8)
_SHORT = 24  # tokens of prompts
_STREAMS = 4
_PER_ROUND = 8  # requests
_TIME_FOR_MORE = 24  # answers, which three prompts need alone, again and among others one after another
_ANSWER_S = 0.5  # that an answer ought to take alone


def level_seconds(until_s: float, level: int) -> float:
    """When level number `level` begins its last requests: equal parts of what is left, less a fifth for answers that
    are under way then."""
    now = time.perf_counter()
    return now + 0.8 * (until_s - now) / (len(LEVELS) - level)


@dataclass(slots=True)
class Generating:
    """process: the server's, where it runs here. probe: the first request that it was ever sent, if this was that."""

    asker: Asker
    process: Process | None
    has_metrics: bool
    probe: Probe | None = None
    max_length: int | None = None  # tokens of prompt and answer
    quick: bool = False
    answer_tokens: int = 16  # of a usual answer; set by the first requests' pace

    @property
    def _long(self) -> int:
        """Tokens of a long prompt."""
        return max(32, min(256, (self.max_length or 4096) // 4))

    async def first(self, until_s: float) -> FirstRequests | None:
        """The first after its start, if that was not long ago; of one that runs already, the first long prompt."""
        probe = self.probe
        length = FIRST_TOKENS if probe is not None else self._long
        if probe is None:
            probe = await Probe.of(self.process, lambda: self._begin(length, 0, until_s))
        first = probe.answer
        if first.first_s is None or first.error is not None:
            return None
        self._set_pace(first)
        later = []
        for number in range(1, 5 if self.quick else 9):
            if time.perf_counter() + 0.5 * first.took_s > until_s:
                break
            answer = await self._begin(length, number, until_s)
            if answer.error is None and answer.first_s is not None:
                later.append(answer)
        if later:
            self._set_pace(later[-1])
        return FirstRequests(
            first.first_s - first.sent_s,
            [answer.first_s - answer.sent_s for answer in later if answer.first_s is not None],
            "request after the start" if self.probe is not None else f"prompt of {length} tokens",
            minor_faults=probe.minor_faults,
            major_faults=probe.major_faults,
        )

    async def _begin(self, tokens: int, number: int, until_s: float) -> Answer:
        return await self.asker.write(text_of(tokens, number), FIRST_ANSWER, until_s=until_s)

    def _set_pace(self, answer: Answer) -> None:
        if answer.gaps_s and answer.num_tokens > 1 and answer.first_s is not None and answer.last_s is not None:
            tpot_s = (answer.last_s - answer.first_s) / (answer.num_tokens - 1)
            self.answer_tokens = max(4, min(32, int(_ANSWER_S / max(tpot_s, 1e-4))))

    async def same(self, until_s: float) -> list[Company]:
        """A few prompts alone, again, and among others; as many of them as there is time for."""
        tokens = max(4, self.answer_tokens // 2)
        start_s = time.perf_counter()
        prompts = [text_of(_SHORT, 100)]
        alone = [await self._say(prompts[0], tokens, until_s)]
        took_s = time.perf_counter() - start_s
        if (until_s - start_s) / max(took_s, 1e-3) > _TIME_FOR_MORE:
            more = [text_of(_SHORT, 101 + number) for number in range(1 if self.quick else 2)]
            alone += [await self._say(prompt, tokens, until_s) for prompt in more]
            prompts += more
        again = [await self._say(prompt, tokens, until_s) for prompt in prompts]
        among = {size: await self._together(prompts, size, tokens, until_s) for size in (4, 8)}
        cases = []
        for n, prompt in enumerate(prompts):
            first, second = alone[n], again[n]
            if first is None or second is None:
                continue
            others = {size: text for size, texts in among.items() if (text := texts[n]) is not None}
            at, margin = None, None
            moved = next((text for text in others.values() if text != first), None)
            if moved is not None:
                at, margin = await self._margin(prompt, tokens, first, moved, until_s)
            cases.append(Company(first, second, others, margin, at))
        return cases

    async def _say(self, prompt: str, tokens: int, until_s: float) -> str | None:
        answer = await self.asker.write(prompt, tokens, until_s=until_s)
        return answer.text if answer.error is None else None

    async def _together(self, prompts: Sequence[str], size: int, tokens: int, until_s: float) -> list[str | None]:
        """The prompts, with others of many lengths to make up the number; those first, so that the batch is there."""
        others = [text_of(8 * (number + 1), 200 + number) for number in range(size - len(prompts))]
        tasks = [asyncio.create_task(self._say(text, tokens, until_s)) for text in [*others, *prompts]]
        return (await asyncio.gather(*tasks))[len(others) :]

    async def _margin(
        self, prompt: str, tokens: int, one: str, other: str, until_s: float
    ) -> tuple[int | None, float | None]:
        """Where two answers part, and by how much the likeliest token leads there."""
        scores = await self.asker.score(prompt, tokens, until_s=until_s)
        parted = parting(one, other)
        ends = accumulate(len(max(tops, key=lambda token: tops[token], default="")) for tops in scores)
        for at, (tops, end) in enumerate(zip(scores, ends, strict=False)):
            if end > parted:
                best = sorted(tops.values(), reverse=True)
                return at, best[0] - best[1] if len(best) > 1 else None
        return None, None

    async def levels(self, until_s: float) -> list[Load]:
        """A closed loop of 1, 2, 4 and 8 clients."""
        found: list[Load] = []
        for number, clients in enumerate(LEVELS):
            begin_until_s = level_seconds(until_s, number)
            if found and time.perf_counter() + 0.5 > until_s:
                break

            async def send(n: int, clients: int = clients) -> Answer:
                text = text_of(_SHORT, 1000 * clients + n)
                return await self.asker.write(text, self.answer_tokens, until_s=until_s)

            async with self._watch() as watch:
                start_s = time.perf_counter()
                answers = await closed_loop(send, clients, begin_until_s)
            found.append(load_of(answers, clients, start_s, watch.window))
        return found

    async def memory(self, until_s: float) -> MemoryRounds | None:
        """Rounds of a few requests."""
        prompts = [text_of(_SHORT, 300 + number) for number in range(_PER_ROUND)]

        async def send(n: int) -> Answer:
            return await self.asker.write(prompts[n], 8, until_s=until_s)

        return await run_rounds(send, MemoryGauge(self.asker, self.process, self.has_metrics), _PER_ROUND, until_s)

    async def spikes(self, until_s: float) -> Spikes:
        """Long answers side by side, first undisturbed, then while long prompts arrive."""
        now = time.perf_counter()
        tokens = max(16, 3 * self.answer_tokens)
        async with self._watch() as watch:
            steady = await self._streams(tokens, now + 0.5 * (until_s - now), until_s)
            stop = asyncio.Event()
            arriving = asyncio.create_task(self._arrivals(stop, until_s))
            mixed = await self._streams(tokens, now + 0.85 * (until_s - now), until_s)
            stop.set()
            await arriving
        grown = watch.window.rates
        frozen = [look.collector["frozen"] for look in watch.window.looks if "frozen" in look.collector]
        return Spikes(
            steady_s=steady,
            mixed_s=mixed,
            streams=_STREAMS,
            prompt_tokens=self._long,
            wall_s=time.perf_counter() - now,
            neighbours=watch.window.neighbours,
            preemptions=None if grown is None else grown.grown.get("preemptions"),
            gc_pause_s=watch.window.collector("pause_s"),
            gc_runs=watch.window.collector("runs"),
            gc_frozen=frozen[-1] if frozen else None,
        )

    async def _streams(self, tokens: int, begin_until_s: float, until_s: float) -> list[float]:
        """Gaps of four streams that begin together, again and again; without those from before all had begun."""
        gaps: list[float] = []
        number = 0
        while time.perf_counter() < begin_until_s:
            texts = [text_of(_SHORT, 400 + number + n) for n in range(_STREAMS)]
            number += _STREAMS
            answers = await asyncio.gather(*(self.asker.write(text, tokens, until_s=until_s) for text in texts))
            if any(answer.error is not None and not answer.is_late for answer in answers):
                break
            gaps += gaps_after_all_began(answers)
        return gaps

    async def _arrivals(self, stop: asyncio.Event, until_s: float) -> None:
        """A long prompt, and a pause, until told to stop."""
        for number in range(10_000):
            await self.asker.write(text_of(self._long, 500 + number), 1, until_s=until_s)
            try:
                async with asyncio.timeout(0.2):
                    await stop.wait()
            except TimeoutError:
                continue
            return

    def _watch(self) -> Watch:
        return Watch(self.asker.endpoint, self.asker.model, self.process, has_metrics=self.has_metrics)


def gaps_after_all_began(answers: Sequence[Answer]) -> list[float]:
    """Of streams that begin together: a prompt that is still computed holds up the others, and is no spike."""
    begun = [answer.first_s for answer in answers if answer.first_s is not None]
    if not begun:
        return []
    kept = []
    for answer in answers:
        at_s = answer.first_s or 0.0
        for gap in answer.gaps_s:
            if at_s >= max(begun):
                kept.append(gap)
            at_s += gap
    return kept
