"""Stage 3: requests into batches. Imports no array code: a scheduler knows lengths, blocks and times, nothing else."""

from aie_scheduler.blocks import BlockAllocator, BlockObserver
from aie_scheduler.config import DEFAULT_BUCKET_EDGES, SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.dynamic import BatchCut, CutReason, DynamicBatcher
from aie_scheduler.errors import BlockDoubleFreeError, OutOfBlocksError, QueueFullError, RequestTooLongError
from aie_scheduler.passthrough import PassThrough
from aie_scheduler.plan import ScheduledChunk, SchedulerStats, StepPlan
from aie_scheduler.protocol import Scheduler
from aie_scheduler.queue import BoundedQueue
from aie_scheduler.report import Percentiles, SimulationReport
from aie_scheduler.request import Request, SequenceState, SequenceStatus
from aie_scheduler.simulator import CostModel, simulate
from aie_scheduler.workload import SimulatedRequest, Workload

__all__ = [
    "DEFAULT_BUCKET_EDGES",
    "BatchCut",
    "BlockAllocator",
    "BlockDoubleFreeError",
    "BlockObserver",
    "BoundedQueue",
    "ContinuousBatcher",
    "CostModel",
    "CutReason",
    "DynamicBatcher",
    "OutOfBlocksError",
    "PassThrough",
    "Percentiles",
    "QueueFullError",
    "Request",
    "RequestTooLongError",
    "ScheduledChunk",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "SequenceState",
    "SequenceStatus",
    "SimulatedRequest",
    "SimulationReport",
    "StepPlan",
    "Workload",
    "simulate",
]
