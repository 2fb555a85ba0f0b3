"""The experiments on a server that generates text: what is sent, and the numbers that come of it. All are bounded in
time: `until_s` is on `time.perf_counter`, and what is not answered by then is given up."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from aie.doctor.asking import Answer, Asker
from aie.doctor.gaps import gaps_after_all_began, standstills
from aie.doctor.loop import LEVELS, closed_loop, level_seconds, load_of
from aie.doctor.measured import Company, FirstRequests, Load, MemoryRounds, Spikes
from aie.doctor.memory_rounds import MemoryGauge, run_rounds
from aie.doctor.probe import FIRST_ANSWER, FIRST_TOKENS, Probe, text_of
from aie.doctor.processes import Process
from aie.doctor.sameness import parting
from aie.doctor.server import Watch

__all__ = ["Generating"]

_SHORT = 24  # tokens of prompts
_STREAMS = 4
_PER_ROUND = 8  # requests
_TIME_FOR_MORE = 24  # answers, which three prompts need alone, again and among others one after another
_GRACE_S = 1.5  # beyond its time, for the three requests that a first one is compared with
_LONG_S = 0.5  # that a long prompt may take alone
_PAUSE_S = 0.15  # between long prompts
_ANSWER_S = 0.5  # that an answer ought to take alone


@dataclass(slots=True)
class Generating:
    """process: the server's, where it runs here. probe: how it was asked how it can be asked. is_fresh: that was the
    first request it ever had."""

    asker: Asker
    process: Process | None
    has_metrics: bool
    probe: Probe
    is_fresh: bool
    max_length: int | None = None  # tokens of prompt and answer
    quick: bool = False
    answer_tokens: int = 16  # of a usual answer; set by the first requests' pace
    ttft_s: float = 0.0  # of a usual prompt
    tokenizer_factor: float = 1.0  # tokens by the server's count to those aimed at; set by the first request

    @property
    def _long(self) -> int:
        """Tokens of a long prompt, as they are aimed at; the tokenizer may make more of the words. Not so many that
        only a few could be computed in the time there is."""
        room = (self.max_length or 4096) / 4 / self.tokenizer_factor
        patience = FIRST_TOKENS * _LONG_S / max(self.ttft_s, 1e-3)
        return max(16, int(min(256, room, max(64, patience))))

    async def first(self, until_s: float) -> list[FirstRequests]:
        """The request with which it was asked how it can be asked, which of a new server is the first; and, of one that
        runs already, the first long prompt. Nothing of what was not answered."""
        probe = self.probe
        if probe.answer.error is not None or probe.answer.first_s is None:
            return []
        self._set_pace(probe.answer)
        if probe.answer.num_prompt_tokens:
            self.tokenizer_factor = max(1.0, probe.answer.num_prompt_tokens / FIRST_TOKENS)
        if self.is_fresh:
            return [await self._against_next(probe, FIRST_TOKENS, 8, "request after the start", until_s)]
        half_s = (time.perf_counter() + until_s) / 2
        found = [await self._against_next(probe, FIRST_TOKENS, 4, "request that was sent", half_s)]
        long = await Probe.of(self.process, lambda: self._begin(self._long, 0, until_s))
        if long.answer.error is None and long.answer.first_s is not None:
            found.append(await self._against_next(long, self._long, 4, f"prompt of {self._long} tokens", until_s))
        return found

    async def _against_next(self, probe: Probe, tokens: int, most: int, what: str, until_s: float) -> FirstRequests:
        """A request, and those of its kind that come next."""
        later: list[Answer] = []
        for number in range(1, most + 1):
            answer = await self._begin(tokens, number, until_s + _GRACE_S)
            if answer.error is None and answer.first_s is not None:
                later.append(answer)
                self._set_pace(answer)
            if len(later) >= 3 and answer.end_s > until_s:
                break
        times = [one.first_s - one.sent_s for one in (probe.answer, *later) if one.first_s is not None]
        return FirstRequests(
            times[0], times[1:], what, minor_faults=probe.minor_faults, major_faults=probe.major_faults
        )

    async def _begin(self, tokens: int, number: int, until_s: float) -> Answer:
        return await self.asker.write(text_of(tokens, number), FIRST_ANSWER, until_s=until_s)

    def _set_pace(self, answer: Answer) -> None:
        if answer.first_s is not None:
            self.ttft_s = answer.first_s - answer.sent_s
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
            steady = await self._streams(tokens, now + 0.35 * (until_s - now), until_s)
            stop = asyncio.Event()
            arriving = asyncio.create_task(self._arrivals(stop, until_s))
            mixed = await self._streams(tokens, now + 0.9 * (until_s - now), until_s)
            stop.set()
            arrived = await arriving
        grown = watch.window.rates
        frozen = [look.collector["frozen"] for look in watch.window.looks if "frozen" in look.collector]
        return Spikes(
            steady_s=gaps_after_all_began(steady),
            mixed_s=gaps_after_all_began(mixed),
            standstills_s=standstills(mixed, arrived),
            streams=_STREAMS,
            prompt_tokens=round(self._long * self.tokenizer_factor),
            wall_s=time.perf_counter() - now,
            neighbours=watch.window.neighbours,
            preemptions=None if grown is None else grown.grown.get("preemptions"),
            gc_pause_s=watch.window.collector("pause_s"),
            gc_runs=watch.window.collector("runs"),
            gc_frozen=frozen[-1] if frozen else None,
        )

    async def _streams(self, tokens: int, begin_until_s: float, until_s: float) -> list[list[Answer]]:
        """Four streams that begin together, again and again."""
        rounds: list[list[Answer]] = []
        while time.perf_counter() < begin_until_s:
            texts = [text_of(_SHORT, 400 + _STREAMS * len(rounds) + n) for n in range(_STREAMS)]
            rounds.append(await asyncio.gather(*(self.asker.write(text, tokens, until_s=until_s) for text in texts)))
            if any(answer.error is not None and not answer.is_late for answer in rounds[-1]):
                break
        return rounds

    async def _arrivals(self, stop: asyncio.Event, until_s: float) -> list[Answer]:
        """A long prompt, and a pause, until told to stop."""
        arrived: list[Answer] = []
        while not stop.is_set():
            text = text_of(self._long, 500 + len(arrived))
            arrived.append(await self.asker.write(text, 1, until_s=until_s))
            if arrived[-1].is_late:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await stop.wait()
        return arrived

    def _watch(self) -> Watch:
        return Watch(self.asker.endpoint, self.asker.model, self.process, has_metrics=self.has_metrics)
