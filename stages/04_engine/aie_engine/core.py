"""The engine's step, free of threads, pipes and a clock of its own:

    commands (add, cancel) → guess → schedule → assemble → execute → sample → update → events

Who calls `step` in which thread, and where the events go, is decided outside (`loop.py`), so every case, failures too,
is tested by calling methods one after another.

What can fail, and what fails with it: a request whose logits are not numbers fails alone. An exception in a step fails
the requests of that step, since nobody knows what their part of the KV cache holds now; the engine goes on with the
others. After `MAX_FAILED_STEPS` such steps in a row it is the engine that is broken: it declares itself dead.
"""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from aie_engine.admission import Admission
from aie_engine.assembler import BatchAssembler
from aie_engine.constraints import MaskAhead
from aie_engine.counting import Counters, figures
from aie_engine.errors import fault_info
from aie_engine.executors.protocol import Executor
from aie_engine.generation import Generation
from aie_engine.preemptions import PreemptionLog
from aie_engine.preparing import Preparing
from aie_engine.requests import ErrorInfo, FinishReason, GenerateRequest, TokenEvent
from aie_engine.sampling import SampleOutput
from aie_engine.speculation import Speculator
from aie_engine.stats import EngineStats
from aie_engine.stepping import StepRunner
from aie_engine.taking import take_chunk
from aie_engine.timeline import TimelineBook
from aie_scheduler import ScheduledChunk, Scheduler, StepPlan
from aie_tensor import AieError, InvalidInputError, MemoryPool

__all__ = ["MAX_FAILED_STEPS", "EngineCore"]

MAX_FAILED_STEPS = 3

_log = logging.getLogger("aie.engine")


class EngineCore:
    """Single-threaded: one thread calls everything."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        assembler: BatchAssembler,
        *,
        eos_token_ids: Collection[int] = (),
        block_size: int | None = None,
        speculator: Speculator | None = None,
        masks: MaskAhead | None = None,
        max_rows: int = 1024,
        pool: MemoryPool | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.dead_reason: str | None = None  # why this engine will never compute again
        self.wake: Callable[[], None] = lambda: None  # called by other threads when `step` has something new to do
        self.timelines = TimelineBook(clock())  # where the time of every request goes
        self._scheduler = scheduler
        self._pool = pool or MemoryPool()
        self._admission = Admission(
            scheduler, self._pool, eos_token_ids=eos_token_ids, block_size=block_size,
            speculates=speculator is not None, seed=seed,
        )  # fmt: skip
        self._runner = StepRunner(executor, assembler, max_rows=max_rows, clock=clock)
        self.speculator = speculator  # None: nothing is guessed ahead
        self._preparing = Preparing(masks)
        self._generations: dict[str, Generation] = {}
        self._decoding: list[Generation] = []  # who sampled in the last step and goes on
        self._events: list[TokenEvent] = []
        self._preemptions = PreemptionLog()
        self._num_failed_in_row = 0
        self._last_step_s = clock()
        self._counters = Counters()
        self._since = scheduler.stats()  # whose counters run on where ours begin anew

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute something or has news."""
        return bool(self._events) or (
            self.dead_reason is None and (self._scheduler.has_work or self._preparing.has_ready)
        )

    def add(self, request: GenerateRequest) -> None:
        """Take a request in. If it cannot be, its only event says why."""
        now = self.clock()
        if self.dead_reason is not None:
            self._refuse(request, ErrorInfo("engine_died", self.dead_reason, 503, 1.0))
            return
        try:
            if request.request_id in self._generations or request.request_id in self._preparing:
                raise InvalidInputError(f"request id {request.request_id!r} is in use", param="request_id")
            if request.constraint is None:
                self._generations[request.request_id] = self._admission.admit(request, now)
            else:
                self._preparing.begin(request, self.wake)
        except Exception as error:
            self._refuse(request, self._fault_of(error))
        else:
            num_prompt, compiles = len(request.prompt_ids), request.constraint is not None
            self.timelines.added(request.request_id, now, num_prompt, compiles=compiles)

    def cancel(self, request_id: str) -> None:
        """End a request now: its blocks are free on return, its last event comes with the next step."""
        if self._scheduler.cancel(request_id) or self._preparing.drop(request_id):
            self._end(request_id, "cancelled")

    def cancel_all(self) -> None:
        for request_id in self._open_ids():
            self.cancel(request_id)

    def next_step_at(self, now: float) -> float | None:
        """When `step` has something to do without a new command; None for never."""
        if self._events or self._preparing.has_ready:
            return now
        if self.dead_reason is not None:
            return None
        ends = self._scheduler.next_deadline(now), self._preparing.next_deadline(now)
        return min((end for end in ends if end is not None), default=None)

    def step(self) -> list[TokenEvent]:
        """Compute one step, if there is anything to compute; returns all news since the last one."""
        began = self.clock()
        plan = self._plan(began) if self.dead_reason is None else None
        if plan is not None and plan.chunks:
            self._run(plan, began)
        events, self._events = self._events, []
        return events

    def die(self, reason: str) -> None:
        """Give up for good: every open request ends with an error, every later one is refused."""
        self.dead_reason = reason
        for request_id in self._open_ids():
            with suppress(Exception):  # it may be the scheduler that broke; whoever waits must hear of it all the same
                self._scheduler.cancel(request_id)
            self._preparing.drop(request_id)
            self._fail(request_id, ErrorInfo("engine_died", reason, 503, 1.0))

    def stats(self) -> EngineStats:
        """Figures of now, without those that belong to the process (`rss_bytes`, `worker_pid`)."""
        return figures(
            self._counters, self._scheduler.stats(), self._pool, self.speculator, since=self._since,
            execute_time_s=self._runner.execute_time_s, last_step_age_s=self.clock() - self._last_step_s,
        )  # fmt: skip

    def reset_counters(self) -> None:
        """Count from here, so that a warm-up is not in the figures."""
        self._counters, self._since = Counters(), self._scheduler.stats()
        self._runner.execute_time_s = 0.0
        if self.speculator is not None:
            self.speculator.begin_anew()
        self._pool.ledger.num_requests = 0
        self.timelines.forget_ended()

    def _prepare(self, now: float) -> None:
        """Whose form is there by now goes on, whose is late or wrong ends."""
        for request_id in self._preparing.take_late(now):
            self._end(request_id, "deadline")
        for request, constraint in self._preparing.take_ready():
            self.timelines.compiled(request.request_id, now)
            try:
                constraint.mask()  # raises what was wrong with it
                self._generations[request.request_id] = self._admission.admit(request, now, constraint)
            except Exception as error:
                self._fail(request.request_id, self._fault_of(error))

    def _fault_of(self, error: Exception) -> ErrorInfo:
        """Why a request could not be taken in."""
        if not isinstance(error, AieError):
            _log.error("a request could not be taken in", exc_info=error)
        return fault_info(error)

    def _open_ids(self) -> list[str]:
        return [*self._generations, *self._preparing.request_ids]

    def _plan(self, now: float) -> StepPlan | None:
        self._prepare(now)
        if self.speculator is not None:
            self.speculator.propose(self._decoding)
        plan = self._scheduler.schedule(now)
        self._decoding = []
        if plan is None:
            return None
        self.timelines.planned(plan, now)
        for request_id in plan.expired:
            self._end(request_id, "deadline")
        for request_id, num_cached in plan.admitted.items():
            member = self._generations[request_id]
            if member.num_cached < 0:  # not what it finds of itself after a preemption
                member.num_cached = num_cached
        if plan.preempted:
            self._preemptions.note(plan.preempted, now)
        return plan

    def _run(self, plan: StepPlan, began: float) -> None:
        """Compute a plan and tell the news."""
        chunks = plan.chunks
        members = [self._generations[chunk.request_id] for chunk in chunks]
        self._counters.add_step(len(chunks))
        accepted: dict[str, int] = {}
        try:
            output = self._runner.run(chunks, members)
        except Exception as error:  # whatever a kernel or our own code raised, the other requests must not suffer
            self._fail_step(plan, error)
        else:
            self._num_failed_in_row = 0
            finished, accepted = self._take(chunks, members, output)
            self._scheduler.update(plan, list(finished), accepted)
            for request_id, reason in finished.items():  # now that its blocks are in the prefix cache, by its token ids
                self._forget(request_id, reason)
            if self.speculator is not None and len(output.token_ids) == plan.num_tokens:  # a step of decodes alone
                self.speculator.cost.observe(plan.num_tokens, self.clock() - began)
        self._last_step_s = self.clock()
        self._counters.step_time_s += self._last_step_s - began
        self.timelines.stepped(plan, began, self._last_step_s, accepted)

    def _take(
        self, chunks: list[ScheduledChunk], members: list[Generation], output: SampleOutput
    ) -> tuple[dict[str, FinishReason], dict[str, int]]:
        """Append the sampled tokens and tell the news; returns who is finished and why, and how many tokens those got
        for whom guesses were made."""
        finished: dict[str, FinishReason] = {}
        accepted: dict[str, int] = {}
        counters, events, decoding = self._counters, self._events, self._decoding
        row = 0
        for chunk, member in zip(chunks, members, strict=True):
            if chunk.start < member.num_prompt:
                counters.tokens_prefill += chunk.num_tokens
            if not chunk.samples:
                continue
            event = take_chunk(chunk, member, output, row, self.speculator)
            row += 1 + chunk.num_drafts
            if isinstance(event, ErrorInfo):
                # At once, and with all it has computed: nobody may be given that.
                self._scheduler.fail(member.request_id)
                self._fail(member.request_id, event)
                continue
            num_tokens = len(event.token_ids)
            counters.tokens_decode += num_tokens
            events.append(event)
            if chunk.num_drafts:
                accepted[member.request_id] = num_tokens
            if event.finish_reason is None:
                decoding.append(member)
            else:
                finished[member.request_id] = event.finish_reason
        return finished, accepted

    def _fail_step(self, plan: StepPlan, error: Exception) -> None:
        _log.error("a step of %d requests failed", len(plan.chunks), exc_info=error)
        self._counters.failed_steps += 1
        self._num_failed_in_row += 1
        for chunk in plan.chunks:
            self._scheduler.fail(chunk.request_id)
            self._fail(chunk.request_id, fault_info(error))
        if self._num_failed_in_row >= MAX_FAILED_STEPS:
            self.die(f"The engine gave up after {MAX_FAILED_STEPS} failed steps in a row ({type(error).__name__}).")

    def _refuse(self, request: GenerateRequest, error: ErrorInfo) -> None:
        # Not `_fail`: the id may be that of an open request, which must not suffer.
        self._pool.ledger.count_request()
        self._events.append(TokenEvent(request.request_id, finish_reason="error", error=error))

    def _fail(self, request_id: str, error: ErrorInfo) -> None:
        self._end(request_id, "error", error)

    def _end(self, request_id: str, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        num_prompt = self._forget(request_id, reason)
        self._events.append(TokenEvent(request_id, finish_reason=reason, error=error, num_prompt_tokens=num_prompt))

    def _forget(self, request_id: str, reason: FinishReason) -> int:
        """A request has ended: nothing of it stays but its timeline. Gives the length of its prompt."""
        self._pool.ledger.count_request()
        self.timelines.ended(request_id, reason, self.clock())
        member = self._generations.pop(request_id, None)
        if member is None:  # its form was being compiled
            return 0
        member.close()
        return member.num_prompt
