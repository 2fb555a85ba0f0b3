"""The experiments on a server that generates text: what is sent, and the numbers that come of it. All are bounded in
time: `until_s` is on `time.perf_counter`, and what is not answered by then is given up."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from aie.bench.workload import tokens_to_words, words
from aie.doctor.asking import Answer, Asker, get
from aie.doctor.loop import closed_loop, load_of
from aie.doctor.measured import Company, FirstRequests, Load, MemoryRounds, Spikes
from aie.doctor.sameness import parting
from aie.doctor.server import Process, Watch, look_at_metrics

__all__ = ["Generating", "level_seconds"]

LEVELS = (1, 2, 4, 8)
_SHORT, _USUAL = 24, 48  # tokens of prompts
_STREAMS = 4
_PER_ROUND = 8  # requests
_SETTLE_S = 0.1
_ANSWER_S = 0.5  # that an answer ought to take alone


def level_seconds(until_s: float, level: int) -> float:
    """When level number `level` begins its last requests: equal parts of what is left, less a fifth for answers that
    are under way then."""
    now = time.perf_counter()
    return now + 0.8 * (until_s - now) / (len(LEVELS) - level)


@dataclass(slots=True)
class Generating:
    """process: the server's, where it runs here. fresh: nothing was asked of it before."""

    asker: Asker
    process: Process | None
    has_metrics: bool
    is_fresh: bool
    max_length: int | None = None  # tokens of prompt and answer
    quick: bool = False
    seed: int = 0
    answer_tokens: int = 16  # of a usual answer; set by the first requests' pace

    def _text(self, tokens: int, number: int) -> str:
        return words(tokens_to_words(tokens), random.Random(f"{self.seed}/{tokens}/{number}"))

    @property
    def _long(self) -> int:
        """Tokens of a long prompt."""
        return max(32, min(256, (self.max_length or 4096) // 4))

    async def first(self, until_s: float) -> FirstRequests | None:
        """The first after its start; of one that runs already, the first long prompt."""
        length = _USUAL if self.is_fresh else self._long
        before = None if self.process is None else self.process.faults()
        first = await self.asker.write(self._text(length, 0), 8, until_s=until_s)
        after = None if self.process is None else self.process.faults()
        if first.first_s is None or first.error is not None:
            return None
        self._set_pace(first)
        later = []
        for number in range(1, 5 if self.quick else 9):
            if time.perf_counter() + 0.5 * first.took_s > until_s:
                break
            answer = await self.asker.write(self._text(length, number), 8, until_s=until_s)
            if answer.error is None and answer.first_s is not None:
                later.append(answer)
        if later:
            self._set_pace(later[-1])
        faults = (None, None) if before is None or after is None else (after[0] - before[0], after[1] - before[1])
        return FirstRequests(
            first.first_s - first.sent_s,
            [answer.first_s - answer.sent_s for answer in later if answer.first_s is not None],
            "request after the start" if self.is_fresh else f"prompt of {length} tokens",
            minor_faults=faults[0],
            major_faults=faults[1],
        )

    def _set_pace(self, answer: Answer) -> None:
        if answer.gaps_s and answer.num_tokens > 1 and answer.first_s is not None and answer.last_s is not None:
            tpot_s = (answer.last_s - answer.first_s) / (answer.num_tokens - 1)
            self.answer_tokens = max(4, min(32, int(_ANSWER_S / max(tpot_s, 1e-4))))

    async def same(self, until_s: float) -> list[Company]:
        """A few prompts alone, again, and among others; every prompt of those counts that was answered each time."""
        prompts = [self._text(_SHORT, 100 + number) for number in range(2 if self.quick else 3)]
        alone = [await self._say(prompt, until_s) for prompt in prompts]
        among = {size: await self._together(prompts, size, until_s) for size in (4, 8)}
        again = [await self._say(prompt, until_s) for prompt in prompts]
        cases = []
        for n, prompt in enumerate(prompts):
            first, second = alone[n], again[n]
            if first is None or second is None:
                continue
            others = {size: text for size, texts in among.items() if (text := texts[n]) is not None}
            at, margin = None, None
            moved = next((text for text in others.values() if text != first), None)
            if moved is not None:
                at, margin = await self._margin(prompt, first, moved, until_s)
            cases.append(Company(first, second, others, margin, at))
        return cases

    async def _say(self, prompt: str, until_s: float) -> str | None:
        answer = await self.asker.write(prompt, self.answer_tokens, until_s=until_s)
        return answer.text if answer.error is None else None

    async def _together(self, prompts: Sequence[str], size: int, until_s: float) -> list[str | None]:
        """The prompts, with others of many lengths to make up the number; those first, so that the batch is there."""
        others = [self._text(8 * (number + 1), 200 + number) for number in range(size - len(prompts))]
        tasks = [asyncio.create_task(self._say(text, until_s)) for text in [*others, *prompts]]
        return (await asyncio.gather(*tasks))[len(others) :]

    async def _margin(self, prompt: str, one: str, other: str, until_s: float) -> tuple[int | None, float | None]:
        """Where two answers part, and by how much the likeliest token leads there."""
        scores = await self.asker.score(prompt, self.answer_tokens, until_s=until_s)
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
                text = self._text(_SHORT, 1000 * clients + n)
                return await self.asker.write(text, self.answer_tokens, until_s=until_s)

            async with self._watch() as watch:
                start_s = time.perf_counter()
                answers = await closed_loop(send, clients, begin_until_s)
            found.append(load_of(answers, clients, start_s, watch.window))
        return found

    async def memory(self, until_s: float) -> MemoryRounds | None:
        """The same requests again and again; the first round, which touches what was never touched, does not count."""
        sizes: list[int] = []
        first_use: list[int] = []
        prompts = [self._text(_SHORT, 300 + number) for number in range(_PER_ROUND)]

        async def send(n: int) -> Answer:
            return await self.asker.write(prompts[n], 8, until_s=until_s)

        block_bytes = await self._block_bytes()
        source, took_s, num_rounds = "", 0.0, 0
        while time.perf_counter() + took_s < until_s and len(sizes) < (6 if self.quick else 12):
            start_s = time.perf_counter()
            answers = await closed_loop(send, _STREAMS, until_s, at_most=_PER_ROUND)
            if any(answer.is_late for answer in answers):
                break
            await asyncio.sleep(_SETTLE_S)
            took_s = time.perf_counter() - start_s
            size, source, blocks = await self._size()
            if size is None:
                return None
            num_rounds += 1
            if num_rounds > 1:
                sizes.append(size)
                if block_bytes is not None and blocks is not None:
                    first_use.append(int(blocks * block_bytes))
        return MemoryRounds(sizes, _PER_ROUND, source, first_use if len(first_use) == len(sizes) else ())

    async def _size(self) -> tuple[int | None, str, float | None]:
        """Bytes, whose figure that is, and KV blocks that were used at least once."""
        look = await look_at_metrics(self.asker.endpoint, self.asker.model) if self.has_metrics else None
        blocks = None
        if look is not None and "blocks_cached" in look.model.gauges:
            blocks = look.model.gauges["blocks_cached"] + look.model.gauges.get("blocks_used", 0.0)
        rss = None if self.process is None else self.process.rss_bytes()
        if rss is not None:
            return rss, "resident memory of its processes", blocks
        if look is not None and look.memory:
            return int(look.memory), "memory by its own metrics", blocks
        return None, "", None

    async def _block_bytes(self) -> int | None:
        """Of a block of our own KV cache."""
        text = await get(self.asker.endpoint, f"/debug/memory?model={self.asker.model}") if self.has_metrics else None
        try:
            pools = json.loads(text or "{}")[self.asker.model]["pools"]
            return max(int(slab["block_bytes"]) for pool in pools for slab in pool["slabs"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

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
            texts = [self._text(_SHORT, 400 + number + n) for n in range(_STREAMS)]
            number += _STREAMS
            answers = await asyncio.gather(*(self.asker.write(text, tokens, until_s=until_s) for text in texts))
            if any(answer.error is not None and not answer.is_late for answer in answers):
                break
            gaps += gaps_after_all_began(answers)
        return gaps

    async def _arrivals(self, stop: asyncio.Event, until_s: float) -> None:
        """A long prompt, and a pause, until told to stop."""
        for number in range(10_000):
            await self.asker.write(self._text(self._long, 500 + number), 1, until_s=until_s)
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
