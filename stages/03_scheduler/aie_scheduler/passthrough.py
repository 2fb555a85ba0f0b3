"""The scheduler that does not schedule: one request at a time, from its first token to its last.

It is the yardstick. What another scheduler brings is its throughput against this one; what it costs is its step time
against this one. Prompts longer than `max_batch_tokens` go through in chunks, since the executor's buffers end there.
"""

from aie_scheduler.base import SchedulerBase, chunk_of
from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.plan import StepPlan
from aie_scheduler.request import SequenceState

__all__ = ["PassThrough"]


class PassThrough(SchedulerBase):
    """In the queue's order, alone. Takes all blocks a request may need at its start, so nobody is preempted.

    With `generates=False` a request is a prediction: whole, one step, no block.
    """

    def __init__(
        self, config: SchedulerConfig, *, allocator: BlockAllocator | None = None, generates: bool = True
    ) -> None:
        super().__init__(config, allocator=allocator, generates=generates)
        self._current: SequenceState | None = None

    def schedule(self, now: float) -> StepPlan | None:
        """The next tokens of the one request under way, or None when no request is left."""
        plan = StepPlan(expired=self._expire(now))
        if self._current is None:
            self._current = self._start_next()
        if self._current is not None:
            num_tokens = min(self._current.num_remaining, self.config.max_batch_tokens)
            plan.chunks.append(chunk_of(self._current, num_tokens))
        return self._count(plan)

    def _start_next(self) -> SequenceState | None:
        state = self._waiting.head()
        if state is not None:
            self._begin(state, self.config.blocks_for(state.max_cached) if self._generates else 0)
        return state

    def _leave(self, state: SequenceState) -> None:
        if state is self._current:
            self._current = None
        else:
            self._stop_waiting(state)
