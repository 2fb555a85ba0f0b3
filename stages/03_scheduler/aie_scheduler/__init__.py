"""Stage 3: requests into batches. Imports no array code: a scheduler knows lengths, blocks and times, nothing else."""

from aie_scheduler.blocks import BlockAllocator, BlockObserver
from aie_scheduler.config import DEFAULT_BUCKET_EDGES, SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.errors import BlockDoubleFreeError, OutOfBlocksError, QueueFullError, RequestTooLongError
from aie_scheduler.plan import ScheduledChunk, SchedulerStats, StepPlan
from aie_scheduler.protocol import Scheduler
from aie_scheduler.queue import BoundedQueue
from aie_scheduler.request import Request, SequenceState, SequenceStatus

__all__ = [
    "DEFAULT_BUCKET_EDGES",
    "BlockAllocator",
    "BlockDoubleFreeError",
    "BlockObserver",
    "BoundedQueue",
    "ContinuousBatcher",
    "OutOfBlocksError",
    "QueueFullError",
    "Request",
    "RequestTooLongError",
    "ScheduledChunk",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "SequenceState",
    "SequenceStatus",
    "StepPlan",
]
