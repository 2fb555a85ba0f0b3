"""The batcher in front: it alone sees all requests, and gives whole batches to whoever can compute one.

    submit ─▶ checked ─▶ batcher ─▶ batch ─▶ idle lane with the least work ─▶ results ─▶ futures

A lane is whatever computes one batch at a time: the model in this process, or a worker process. A batch is cut only
when a lane is idle, since whoever comes in the meantime may still join it.

Exactly once: a request is open from `submit` until somebody takes it out of `_open`, under the lock. Whoever does
resolves its future: a result, a cancel, a deadline, a dead worker, the end. All the others find it gone.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from aie_engine.errors import DeadlinePassedError, EngineDeadError, RequestCancelledError
from aie_engine.predictors.books import Batch, Counts, Lane, LaneBook, Member, to_batcher
from aie_engine.predictors.checking import checked_item
from aie_engine.predictors.pause import Pause
from aie_engine.predictors.protocol import PredictorInfo, PredictorStats, WorkerStats
from aie_engine.predictors.requests import BatchFacts, PredictFuture, Prediction, PredictRequest
from aie_engine.predictors.room import Room, dropped_error, oldest_waiting
from aie_engine.predictors.runner import BatchResult, Item
from aie_scheduler import DeadlineHeap, Overflow, QueueFullError, Scheduler, WaitStrategy, yield_core
from aie_tensor import AieError, InvalidInputError

__all__ = ["BatchFront"]

_log = logging.getLogger("aie.engine")


class BatchFront:
    """Thread-safe. `run` in one thread; or `step` by hand, on a clock of one's own."""

    def __init__(
        self,
        info: PredictorInfo,
        batcher: Scheduler,
        *,
        queue_policy: Overflow = "reject",
        block_timeout_s: float = 10.0,
        waiting: WaitStrategy | None = None,  # None: block
        clock: Callable[[], float] = time.monotonic,
        condition: Callable[[threading.Lock], threading.Condition] = threading.Condition,
        spin: Callable[[], None] = yield_core,
    ) -> None:
        self._info = info
        self._batcher = batcher
        self._clock = clock
        lock = threading.Lock()
        self._changed = condition(lock)
        self._pause = Pause(self._changed, waiting, clock=clock, spin=spin)
        self._room = Room(queue_policy, block_timeout_s, freed=condition(lock), clock=clock)
        self._lanes: dict[int, Lane] = {}
        self._books: dict[int, LaneBook] = {}
        self._open: dict[str, Member] = {}
        self._deadlines = DeadlineHeap[Member](lambda member: self._open.get(member.request_id) is not member)
        self._again: deque[Batch] = deque()  # whose worker died
        self._counts = Counts()
        self._dead_reason: str | None = None
        self.on_batch: Callable[[BatchFacts], None] | None = None  # told of each; must neither raise nor wait

    @property
    def is_alive(self) -> bool:
        """Whether `submit` may succeed."""
        return self._dead_reason is None

    def set_lanes(self, lanes: Sequence[Lane]) -> None:
        """Once, before `run`. All are idle."""
        self._lanes = {lane.index: lane for lane in lanes}
        self._books = {lane.index: LaneBook() for lane in lanes}

    def submit(self, request: PredictRequest) -> PredictFuture:
        """Take a request in, or raise what `PredictorClient.submit` promises and keep nothing."""
        try:
            item, length = checked_item(self._info, request)
            return self._join(request, item, length)
        except AieError:
            with self._changed:
                self._counts.refused += 1
            raise

    def run(self) -> None:
        """Until `end`. What goes wrong in here ends the predictor, and everybody is told."""
        try:
            while self._dead_reason is None:
                self._pause.found(self._num_waiting)
                self.step()
                self._pause.take(self._next_moment_s)
        except BaseException as error:
            _log.exception("the predictor's front failed")
            self.end(f"The predictor failed: {type(error).__name__}: {error}")

    def step(self) -> None:
        """Expire who is late, and hand out batches for as long as there are a ripe one and an idle lane."""
        while True:
            with self._changed:
                now = self._clock()
                expired = self._take(self._deadlines.due(now))
                chosen = self._choose(now, expired)
                self._counts.expired += len(expired)
            for member in expired:
                member.future.resolve(DeadlinePassedError(f"the deadline of {member.request_id} has passed"))
            if chosen is None:
                return
            chosen[0].start(chosen[1])

    def is_running(self, lane: Lane, batch: Batch) -> bool:
        """Whether `lane` is to compute `batch`; not if it was lost in the meantime."""
        with self._changed:
            return self._books[lane.index].batch is batch

    def finish(self, lane: Lane, batch: Batch, result: BatchResult) -> None:
        """A batch is computed."""
        assert len(result.items) == len(batch.members), (len(result.items), len(batch.members))
        with self._changed:
            book = self._books[lane.index]
            self._counts.add(batch, result, book.stuck_s(self._clock()))
            book.add(batch, result)
            own = {id(member) for member in self._take(batch.members)}
            pairs = [pair for pair in zip(batch.members, result.items, strict=True) if id(pair[0]) in own]
            num_failed = sum(isinstance(outputs, AieError) for _, outputs in pairs)
            self._counts.failed += num_failed
            self._counts.done += len(pairs) - num_failed
            self._pause.call()
        if (on_batch := self.on_batch) is not None:
            on_batch(batch.facts(min(batch.members, key=lambda member: member.arrival_s), result, lane.index))
        for member, outputs in pairs:
            if isinstance(outputs, AieError):
                member.future.resolve(outputs)
                continue
            member.future.resolve(Prediction(outputs, batch.facts(member, result, lane.index)))

    def lose(self, lane: Lane, reason: str) -> None:
        """A worker is dead. Its batch goes to another once; a batch that meets a second death fails."""
        with self._changed:
            batch = self._books[lane.index].lose(self._clock())
            failed: list[Member] = []
            if batch is not None:
                if batch.num_deaths == 0 and self._dead_reason is None:
                    self._again.append(replace(batch, num_deaths=1))
                    self._counts.resent += 1
                else:
                    failed = self._take(batch.members)
                    self._counts.failed += len(failed)
            self._pause.call()
        for member in failed:
            member.future.resolve(EngineDeadError(f"{reason} It was computing this request."))

    def revive(self, lane: Lane) -> None:
        """A worker is there again."""
        with self._changed:
            self._books[lane.index].revive()
            self._pause.call()

    def drain(self) -> None:
        """Who waits for company stops waiting."""
        with self._changed:
            self._batcher.drain()
            self._pause.call()

    def end(self, reason: str) -> None:
        """No more requests; those that wait fail. Batches under way may still finish."""
        with self._changed:
            if self._dead_reason is None:
                self._dead_reason = reason
            running = {id(member) for book in self._books.values() if book.batch for member in book.batch.members}
            failed = self._take([member for member in self._open.values() if id(member) not in running])
            self._again.clear()
            self._counts.failed += len(failed)
            self._room.close()
            self._pause.call()
        for member in failed:
            member.future.resolve(EngineDeadError(reason))

    def wait_idle(self, timeout_s: float) -> bool:
        """Until no batch is under way; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(book.batch for book in self._books.values()), timeout_s)

    def stats(self, workers: Callable[[WorkerStats], WorkerStats] = lambda worker: worker) -> PredictorStats:
        """Figures of now. workers: adds what only the lanes know, such as process ids."""
        now = self._clock()
        with self._changed:
            return self._counts.stats(
                waiting=self._batcher.stats().num_waiting + sum(len(batch.members) for batch in self._again),
                running=sum(len(book.batch.members) for book in self._books.values() if book.batch is not None),
                max_batch_size=self._info.max_batch_size,
                stuck_s=min((book.stuck_s(now) for book in self._books.values()), default=0.0),
                workers=[workers(book.stats(index)) for index, book in self._books.items()],
            )

    def _join(self, request: PredictRequest, item: Item, length: int) -> PredictFuture:
        arrival_s = now = self._clock()
        dropped = None
        with self._changed:
            try:
                self._enter(request, length, now)
            except QueueFullError as full:
                if self._room.policy == "reject":
                    raise
                if self._room.policy == "block":
                    now = self._room.wait(full, request.deadline_s, lambda now: self._enter(request, length, now))
                else:
                    (dropped,) = self._take([oldest_waiting(self._open.values())])
                    self._counts.dropped += 1
                    dropped_for = dropped_error(dropped, full)
                    self._enter(request, length, now)
            future = PredictFuture(request.request_id, self._cancel)
            member = Member(request.request_id, item, future, arrival_s, request.deadline_s)
            self._open[request.request_id] = member
            self._deadlines.add(member)
            # A front that would sleep on is not woken: most requests only join those that wait for the same moment.
            if self._pause.until_s > now and self._next_moment_s(now) < self._pause.until_s:
                self._pause.call()
        if dropped is not None:
            dropped.future.resolve(dropped_for)
        return future

    def _enter(self, request: PredictRequest, length: int, now: float) -> None:
        """Into the batcher, or raise and keep nothing. Its wait for company begins now. Under the lock."""
        if self._dead_reason is not None:
            raise EngineDeadError(self._dead_reason)
        if request.request_id in self._open:
            raise InvalidInputError(f"request id {request.request_id!r} is in use", param="request_id")
        self._batcher.add(to_batcher(request, length, now))

    def _cancel(self, future: PredictFuture) -> bool:
        with self._changed:
            member = self._open.get(future.request_id)
            if member is None or member.future is not future or not self._take([member]):
                return False
            self._counts.cancelled += 1
        return future.resolve(RequestCancelledError(f"the request {future.request_id} was cancelled"))

    def _take(self, members: Iterable[Member]) -> list[Member]:
        """Those of `members` that were open, and no longer are: the caller resolves them. Under the lock."""
        taken: list[Member] = []
        for member in members:
            if self._open.get(member.request_id) is member:
                del self._open[member.request_id]
                self._deadlines.forget(member)
                self._batcher.cancel(member.request_id)  # does nothing for one that is computed
                taken.append(member)
        self._room.left(len(taken))
        return taken

    def _choose(self, now: float, expired: list[Member]) -> tuple[Lane, Batch] | None:
        """A batch, and the idle lane that has worked least. Who expired in the batcher joins `expired`."""
        idle = [index for index, book in self._books.items() if book.is_ready and book.batch is None]
        if not idle or self._dead_reason is not None:
            return None
        batch = self._again_batch() or self._cut(now, expired)
        if batch is None:
            return None
        index = min(idle, key=lambda index: (self._books[index].compute_s, index))
        self._books[index].begin(batch, now)
        return self._lanes[index], batch

    def _again_batch(self) -> Batch | None:
        while self._again:
            batch = self._again.popleft()
            batch.members = [member for member in batch.members if self._open.get(member.request_id) is member]
            if batch.members:
                return batch
        return None

    def _cut(self, now: float, expired: list[Member]) -> Batch | None:
        plan = self._batcher.schedule(now)
        if plan is None:
            return None
        expired += self._take([self._open[request_id] for request_id in plan.expired if request_id in self._open])
        names = [chunk.request_id for chunk in plan.chunks]
        if not names:
            return None
        self._batcher.update(plan, names)  # the batcher's part is done; the next batch may be cut while this one runs
        lengths = [chunk.num_tokens for chunk in plan.chunks]
        padding_share = 1.0 - sum(lengths) / (len(lengths) * max(lengths))
        reason = "alone" if plan.cut is None else plan.cut.reason.value
        self._room.left(len(names))
        return Batch([self._open[name] for name in names], reason, padding_share, now)

    def _num_waiting(self) -> int:
        with self._changed:
            return self._batcher.stats().num_waiting

    def _next_moment_s(self, now: float) -> float:
        """When something has to be done, unless somebody calls before; infinity for never, `now` at the end."""
        if self._dead_reason is not None:
            return now
        nearest_s = self._deadlines.nearest()
        moment_s = math.inf if nearest_s is None else nearest_s
        if any(book.is_ready and book.batch is None for book in self._books.values()):
            ripe_s = now if self._again else self._batcher.next_deadline(now)
            moment_s = moment_s if ripe_s is None else min(moment_s, ripe_s)
        return moment_s
