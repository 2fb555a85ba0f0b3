"""The engine's step, free of threads, pipes and a clock of its own:

    commands (add, cancel) → schedule → assemble → execute → sample → update → events

Who calls `step` in which thread, and where the events go, is decided outside (`loop.py`), so every case, failures too,
is tested by calling methods one after another.

What can fail, and what fails with it: a request whose logits are not numbers fails alone. An exception in a step fails
the requests of that step, since nobody knows what their part of the KV cache holds now; the engine goes on with the
others. After `MAX_FAILED_STEPS` such steps in a row it is the engine that is broken: it declares itself dead.
"""

import logging
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass

from aie_engine.assembler import BatchAssembler
from aie_engine.errors import error_info
from aie_engine.executors.protocol import Executor
from aie_engine.generation import Generation
from aie_engine.requests import ErrorInfo, FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from aie_engine.sampling import SampleOutput, sample
from aie_engine.stats import EngineStats
from aie_scheduler import Request, ScheduledChunk, Scheduler, StepPlan
from aie_tensor import AieError, MemoryPool

__all__ = ["MAX_FAILED_STEPS", "EngineCore"]

MAX_FAILED_STEPS = 3

_log = logging.getLogger("aie.engine")
_NOT_NUMBERS = ErrorInfo("engine_fault", "The model's output for this request was not a number; the request was ended.")
_NO_TOKEN_LEFT = ErrorInfo(
    "no_token_allowed",
    "What the request allows and forbids leaves no token to go on with; allow more tokens, or lower min_tokens.",
    400,
)


@dataclass(slots=True)
class _Counters:
    """As in `EngineStats`."""

    steps: int = 0
    batch_size_sum: int = 0
    tokens_prefill: int = 0
    tokens_decode: int = 0
    step_time_s: float = 0.0
    execute_time_s: float = 0.0
    failed_steps: int = 0


class EngineCore:
    """Single-threaded: one thread calls everything."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        assembler: BatchAssembler,
        *,
        eos_token_ids: Collection[int] = (),
        pool: MemoryPool | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.dead_reason: str | None = None  # why this engine will never compute again
        self._scheduler = scheduler
        self._executor = executor
        self._assembler = assembler
        self._eos_token_ids = frozenset(eos_token_ids)
        self._pool = pool or MemoryPool()
        self._seeds = random.Random(seed)
        self._generations: dict[str, Generation] = {}
        self._events: list[TokenEvent] = []
        self._num_failed_in_row = 0
        self._last_step_s = clock()
        self._counters = _Counters()

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute something or has news."""
        return bool(self._events) or (self.dead_reason is None and self._scheduler.has_work)

    def add(self, request: GenerateRequest) -> None:
        """Take a request in. If it cannot be, its only event says why."""
        if self.dead_reason is not None:
            self._refuse(request, ErrorInfo("engine_died", self.dead_reason, 503, 1.0))
            return
        params = request.sampling
        try:
            self._scheduler.add(
                Request(
                    request_id=request.request_id,
                    prompt_len=len(request.prompt_ids),
                    max_tokens=params.max_tokens,
                    priority=request.priority,
                    arrival_s=self.clock(),
                    deadline_s=request.deadline_s,
                )
            )
        except AieError as error:
            self._refuse(request, error_info(error))
            return
        if params.seed is None:
            params = params.with_seed(self._seeds.getrandbits(63))
        try:
            self._generations[request.request_id] = Generation(request, params, self._eos_token_ids, self._pool)
        except AieError as error:  # out of memory
            self._scheduler.cancel(request.request_id)
            self._refuse(request, error_info(error))

    def cancel(self, request_id: str) -> None:
        """End a request now: its blocks are free on return, its last event comes with the next step."""
        if self._scheduler.cancel(request_id):
            self._end(request_id, "cancelled")

    def cancel_all(self) -> None:
        for request_id in list(self._generations):
            self.cancel(request_id)

    def next_step_at(self, now: float) -> float | None:
        """When `step` has something to do without a new command; None for never."""
        if self._events:
            return now
        return None if self.dead_reason is not None else self._scheduler.next_deadline(now)

    def step(self) -> list[TokenEvent]:
        """Compute one step, if there is anything to compute; returns all news since the last one."""
        began = self.clock()
        plan = self._scheduler.schedule(began) if self.dead_reason is None else None
        if plan is not None:
            for request_id in plan.expired:
                self._end(request_id, "deadline")
            if plan.chunks:
                self._run(plan)
                self._last_step_s = self.clock()
                self._counters.step_time_s += self._last_step_s - began
        events, self._events = self._events, []
        return events

    def die(self, reason: str) -> None:
        """Give up for good: every open request ends with an error, every later one is refused."""
        self.dead_reason = reason
        for request_id in list(self._generations):
            with suppress(Exception):  # it may be the scheduler that broke; whoever waits must hear of it all the same
                self._scheduler.cancel(request_id)
            self._fail(request_id, ErrorInfo("engine_died", reason, 503, 1.0))

    def stats(self) -> EngineStats:
        """Figures of now, without those that belong to the process (`rss_bytes`, `worker_pid`)."""
        queue = self._scheduler.stats()
        used = queue.num_blocks - queue.num_free_blocks
        memory = self._pool.stats()
        return EngineStats(
            num_running=queue.num_running,
            num_waiting=queue.num_waiting,
            kv_usage=used / queue.num_blocks if queue.num_blocks else 0.0,
            num_free_blocks=queue.num_free_blocks,
            num_preemptions=queue.num_preemptions,
            last_step_age_s=self.clock() - self._last_step_s,
            num_kv_blocks=queue.num_blocks,
            memory_reserved_bytes=memory.reserved_bytes,
            memory_live_bytes=memory.live_bytes,
            memory_requested_bytes=memory.requested_bytes,
            memory_cached_bytes=memory.cached_bytes,
            memory_pending_bytes=memory.pending_bytes,
            memory_mapped_bytes=memory.mapped_bytes,
            **asdict(self._counters),
        )

    def reset_counters(self) -> None:
        """Count from here, so that a warm-up is not in the figures."""
        self._counters = _Counters()
        self._pool.ledger.num_requests = 0

    def _run(self, plan: StepPlan) -> None:
        chunks = plan.chunks
        members = [self._generations[chunk.request_id] for chunk in chunks]
        sampling = [member for chunk, member in zip(chunks, members, strict=True) if chunk.samples]
        self._counters.steps += 1
        self._counters.batch_size_sum += len(chunks)
        try:
            output = self._compute(chunks, members, sampling)
        except Exception as error:  # whatever a kernel or our own code raised, the other requests must not suffer
            self._fail_step(plan, error)
            return
        self._num_failed_in_row = 0
        for chunk, member in zip(chunks, members, strict=True):
            if chunk.start < member.num_prompt:
                self._counters.tokens_prefill += chunk.num_tokens
        self._scheduler.update(plan, self._take(sampling, output))

    def _compute(
        self, chunks: list[ScheduledChunk], members: list[Generation], sampling: list[Generation]
    ) -> SampleOutput:
        batch = self._assembler.assemble(chunks, [member.tokens for member in members])
        began = self.clock()
        logits = self._executor.run(batch)
        self._counters.execute_time_s += self.clock() - began
        if not sampling:
            return SampleOutput([], [], frozenset())
        return sample(logits, [member.row for member in sampling], argmax=self._executor.argmax_rows)

    def _take(self, sampling: list[Generation], output: SampleOutput) -> list[str]:
        """Append the sampled tokens and tell the news; returns who is finished."""
        finished: list[str] = []
        for row, (member, token_id, logprobs) in enumerate(
            zip(sampling, output.token_ids, output.logprobs, strict=True)
        ):
            request_id = member.request_id
            if row in output.failed or row in output.stuck:
                self._fail(request_id, _NOT_NUMBERS if row in output.failed else _NO_TOKEN_LEFT)
                finished.append(request_id)
                continue
            self._counters.tokens_decode += 1
            reason = member.append(token_id)
            if reason is not None:
                finished.append(request_id)
                self._forget(request_id)
            self._events.append(_token_event(member, token_id, logprobs, reason))
        return finished

    def _fail_step(self, plan: StepPlan, error: Exception) -> None:
        _log.error("a step of %d requests failed", len(plan.chunks), exc_info=error)
        self._counters.failed_steps += 1
        self._num_failed_in_row += 1
        for chunk in plan.chunks:
            self._scheduler.cancel(chunk.request_id)
            self._fail(chunk.request_id, _fault(error))
        if self._num_failed_in_row >= MAX_FAILED_STEPS:
            self.die(f"The engine gave up after {MAX_FAILED_STEPS} failed steps in a row ({type(error).__name__}).")

    def _refuse(self, request: GenerateRequest, error: ErrorInfo) -> None:
        # Not `_fail`: the id may be that of an open request, which must not suffer.
        self._pool.ledger.count_request()
        self._events.append(TokenEvent(request.request_id, finish_reason="error", error=error))

    def _fail(self, request_id: str, error: ErrorInfo) -> None:
        self._end(request_id, "error", error)

    def _end(self, request_id: str, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        num_prompt = self._forget(request_id)
        self._events.append(TokenEvent(request_id, finish_reason=reason, error=error, num_prompt_tokens=num_prompt))

    def _forget(self, request_id: str) -> int:
        """A request has ended, however: nothing of it stays. Gives the length of its prompt."""
        self._pool.ledger.count_request()
        member = self._generations.pop(request_id, None)
        if member is None:
            return 0
        member.close()
        return member.num_prompt


def _token_event(
    member: Generation, token_id: int, logprobs: TokenLogprobs | None, reason: FinishReason | None
) -> TokenEvent:
    return TokenEvent(
        member.request_id,
        (token_id,),
        () if logprobs is None else (logprobs,),
        reason,
        token_id if reason == "stop" else None,
        None,
        member.num_prompt,
    )


def _fault(error: Exception) -> ErrorInfo:
    """What the client of a failed step sees: that it failed and how, not the text of a foreign exception."""
    return ErrorInfo("engine_fault", f"The engine failed while computing this request ({type(error).__name__}).")
