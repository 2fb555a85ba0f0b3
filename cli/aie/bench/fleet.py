"""The processes of the load generator, seen from the one that starts them.

They are told a plan and when to begin; requests that began and ended come back in batches, ten times a second. Times
need no translation, since `time.perf_counter` is the machine's monotonic clock, the same in every process; where it is
not, the difference is taken at the start.
"""

import asyncio
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aie.bench.generator.outcome import Outcome, fill
from aie.bench.generator.plan import Plan, shares
from aie.bench.process import Process
from aie_engine import EnvironmentLacksError

__all__ = ["Fleet", "GeneratorDiedError", "Ran", "most_at_once"]

_LEAD_S = 0.005  # from the word to the start: it has reached everybody by then
_LAST_WORDS_S = 0.5  # to tell what had ended

News = Callable[[Outcome], None]


class GeneratorDiedError(EnvironmentLacksError):
    """A process of the load generator ended before it was told to."""

    code = "generator_died"


@dataclass(slots=True)
class Ran:
    """What came back of a plan."""

    outcomes: list[Outcome]  # in the order in which they were heard of
    start_s: float
    wall_s: float  # to the end of the last
    cpu: tuple[float, ...]  # of one core, per process, while it sent

    @property
    def most_in_flight(self) -> int:
        """Requests under way at once."""
        return most_at_once(self.outcomes)


class Fleet:
    """`with Fleet(2) as fleet:` two processes that serve any number of runs, one after another."""

    def __init__(self, processes: int = 1) -> None:
        assert processes >= 1, processes
        self.processes = processes
        self._children: list[Process] = []
        self._number = 0
        self._run: _Run | None = None
        self.death: GeneratorDiedError | None = None  # which ended a run

    def __enter__(self) -> "Fleet":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Does not wait: the first run does."""
        while len(self._children) < self.processes:
            self._children.append(Process())

    def close(self) -> None:
        """No process is left."""
        children, self._children = self._children, []
        for child in children:
            child.hang_up()
        for child in children:
            child.end()

    def stop(self, *, hang_up: bool = False) -> None:
        """No request of the run is begun any more; it returns when those under way have ended. hang_up: they end now,
        as stopped."""
        if self._run is not None:
            self._run.tell("stop", hang_up)

    async def run(
        self, plan: Plan, *, on_start: News | None = None, on_done: News | None = None,
        on_first: News | None = None, on_flow: Callable[[int], None] | None = None,
        on_begin: Callable[[float], None] | None = None,
    ) -> Ran:  # fmt: skip
        """Sends a plan and returns when all has ended. on_start, on_first and on_done get the same object: before it is
        sent, with the time of its first text, and full. on_flow: told how many events with text the requests have that
        are still open; on_begin: when it starts. Cancelled, it hangs up on all of them. Raises `GeneratorDiedError`;
        what had ended was told before."""
        self.start()
        parts = shares(plan, self.processes)
        self._number += 1
        run = self._run = _Run(
            self._number, self._children[: len(parts)], on_start, on_first, on_done, on_flow, on_begin
        )
        try:
            return await run.through(parts)
        except GeneratorDiedError as error:
            self.death = error
            run.call_off()
            raise
        except asyncio.CancelledError:
            run.call_off()
            raise
        except BaseException:
            run.tell("abort")
            raise
        finally:
            self._run = None
            if run.has_lost:  # the next run has new ones
                self.close()


@dataclass(slots=True, eq=False)
class _Run:
    """One plan on its way through the processes."""

    number: int
    children: Sequence[Process]
    on_start: News | None
    on_first: News | None
    on_done: News | None
    on_flow: Callable[[int], None] | None
    on_begin: Callable[[float], None] | None
    has_lost: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    _open: dict[tuple[int, int], Outcome] = field(default_factory=dict)  # by process and number
    _flow: dict[int, int] = field(default_factory=dict)  # events of open requests, by process
    _ready: set[int] = field(default_factory=set)
    _ends: dict[int, tuple[float, float]] = field(default_factory=dict)
    _stage: "asyncio.Future[None] | None" = None

    async def through(self, parts: Sequence[Plan]) -> Ran:
        loop = asyncio.get_running_loop()
        for index, child in enumerate(self.children):
            loop.add_reader(child.link, self._read, index)
        try:
            self._stage = loop.create_future()
            for child, part in zip(self.children, parts, strict=True):
                child.tell("plan", self.number, part)
            await self._stage
            self._stage = loop.create_future()
            start_s = time.perf_counter() + _LEAD_S
            for child in self.children:
                child.tell("go", self.number, start_s + child.ahead_s)
            if self.on_begin is not None:
                self.on_begin(start_s)
            await self._stage
        except OSError:
            raise self._died(next((one for one in self.children if one.is_dead), self.children[0])) from None
        finally:
            for child in self.children:
                loop.remove_reader(child.link)
        end_s = max(end for end, _ in self._ends.values())
        seconds = max(1e-9, end_s - start_s)
        return Ran(self.outcomes, start_s, seconds, tuple(self._ends[i][1] / seconds for i in sorted(self._ends)))

    def tell(self, kind: str, *rest: Any) -> None:
        """All of them; who is dead is found out elsewhere."""
        for child in self.children:
            with suppress(OSError):
                child.tell(kind, self.number, *rest)

    def call_off(self) -> None:
        """Hangs up on all that is under way, and hears of what had ended by then: nothing that was measured is lost.
        Waits for that, but not long."""
        self.tell("abort")
        until_s = time.perf_counter() + _LAST_WORDS_S
        for index, child in enumerate(self.children):
            with suppress(EOFError):
                while index not in self._ends and (left_s := until_s - time.perf_counter()) > 0:
                    if select.select([child.link], [], [], left_s)[0]:
                        for message in child.read():
                            self._hear(index, child, *message)

    def _read(self, index: int) -> None:
        child = self.children[index]
        try:
            for message in child.read():
                self._hear(index, child, *message)
        except EOFError:
            self._fail(self._died(child))
        except Exception as error:  # of whoever is told: it ends the run, and is not lost in the event loop
            self._fail(error)

    def _hear(self, index: int, child: Process, kind: str, number: Any, *rest: Any) -> None:
        if kind == "hello":
            child.meet(number)
        elif kind == "fault":
            child.fault = str(number)
            self._fail(self._died(child))
        elif number != self.number:
            return  # of a run that was aborted
        elif kind == "ready":
            self._ready.add(index)
            self._proceed(len(self._ready))
        elif kind == "news":
            self._take(index, child.ahead_s, *rest)
        elif kind == "end":
            self._ends[index] = (rest[0] - child.ahead_s, rest[1])
            self._proceed(len(self._ends))

    def _take(
        self, index: int, ahead_s: float, started: list[tuple[int, tuple[Any, ...]]], first: list[tuple[int, float]],
        done: list[tuple[int, tuple[Any, ...]]], events: int,
    ) -> None:  # fmt: skip
        for number, values in started:
            outcome = self._open[index, number] = _received(Outcome(), values, ahead_s)
            if self.on_start is not None:
                self.on_start(outcome)
        # Ctrl-C may come in the midst of a message, which is then heard once more.
        for number, first_token_s in first:
            if (index, number) not in self._open:
                continue
            outcome = self._open[index, number]
            outcome.first_token_s = first_token_s - ahead_s
            if self.on_first is not None:
                self.on_first(outcome)
        for number, values in done:
            if (index, number) not in self._open:
                continue
            outcome = self._open.pop((index, number))
            is_known = outcome.first_token_s is not None
            _received(outcome, values, ahead_s)
            if self.on_first is not None and outcome.first_token_s is not None and not is_known:
                self.on_first(outcome)
            self.outcomes.append(outcome)
            if self.on_done is not None:
                self.on_done(outcome)
        self._flow[index] = events
        if self.on_flow is not None:
            self.on_flow(sum(self._flow.values()))

    def _proceed(self, count: int) -> None:
        if count == len(self.children) and self._stage is not None and not self._stage.done():
            self._stage.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._stage is not None and not self._stage.done():
            self._stage.set_exception(error)

    def _died(self, child: Process) -> GeneratorDiedError:
        self.has_lost = True
        return GeneratorDiedError(
            f"A process of the load generator ended {child.post_mortem()}; the figures are of what came before. "
            "Run the test again; with fewer requests at once if memory was short."
        )


def _received(outcome: Outcome, values: tuple[Any, ...], ahead_s: float) -> Outcome:
    fill(outcome, values)
    if ahead_s:
        for name in ("sent_s", "first_token_s", "last_token_s", "end_s", "due_s", "first_byte_s"):
            at_s = getattr(outcome, name)
            setattr(outcome, name, at_s if at_s is None else at_s - ahead_s)
    return outcome


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    """At any moment: from their times, so that it is exact over all processes."""
    steps = sorted([(one.sent_s, 1) for one in outcomes] + [(one.end_s, -1) for one in outcomes])
    most = count = 0
    for _, change in steps:
        count += change
        most = max(most, count)
    return most
