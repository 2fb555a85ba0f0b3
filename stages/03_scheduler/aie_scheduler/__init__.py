"""Stage 3: requests into batches. A scheduler knows lengths, blocks and times, nothing else.

Layout, each line built on those above it:

    errors, config                       what is refused; the limits
    request, cut, plan, protocol         what goes in, what comes out and why, the life of a step
    fair, lane, queue                    whose turn it is: by priority, by fair share, by age
    blocks, deadlines                    who holds which KV block, who runs out of time
    prefix, victims, slices              equal beginnings once; who gives up its blocks; long prompts bit by bit
    base                                 taking in, forgetting, counting: the same for all schedulers
    waiting, front                       many threads before one loop: bounded, and how that loop waits
    passthrough, continuous              one request at a time; requests that join and leave at every step
    gaps, buckets, dynamic, static       whole requests, gathered by size and waiting time
    factory                              one configuration value chooses the scheduler
    workload, traffic, report, simulator the real schedulers on a virtual clock
    measure, live, timeline, plot, demo  what it costs, what it brings here, what it looks like

It may import the errors of stage 1, and no array code: neither NumPy nor stage 2.
"""

from aie_scheduler.blocks import BlockAllocator, BlockObserver
from aie_scheduler.config import DEFAULT_BUCKET_EDGES, Buckets, Padding, Policy, SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.cut import BatchCut, CutReason
from aie_scheduler.deadlines import DeadlineHeap
from aie_scheduler.dynamic import DynamicBatcher
from aie_scheduler.errors import (
    BlockDoubleFreeError,
    OutOfBlocksError,
    QueueClosedError,
    QueueFullError,
    RequestTooLongError,
)
from aie_scheduler.factory import make_scheduler
from aie_scheduler.front import FrontQueue, Overflow, yield_core
from aie_scheduler.passthrough import PassThrough
from aie_scheduler.plan import HeldBack, HeldReason, Preemption, ScheduledChunk, SchedulerStats, StepPlan
from aie_scheduler.protocol import Scheduler
from aie_scheduler.queue import BoundedQueue
from aie_scheduler.report import Percentiles, SimulationReport
from aie_scheduler.request import BlockContent, Request, SequenceState, SequenceStatus
from aie_scheduler.simulator import BatchCost, CostModel, StepCost, simulate
from aie_scheduler.static import StaticBatcher
from aie_scheduler.waiting import Block, Hybrid, Spin, WaitStrategy
from aie_scheduler.workload import SimulatedRequest, Workload

__all__ = [
    "DEFAULT_BUCKET_EDGES",
    "BatchCost",
    "BatchCut",
    "Block",
    "BlockAllocator",
    "BlockContent",
    "BlockDoubleFreeError",
    "BlockObserver",
    "BoundedQueue",
    "Buckets",
    "ContinuousBatcher",
    "CostModel",
    "CutReason",
    "DeadlineHeap",
    "DynamicBatcher",
    "FrontQueue",
    "HeldBack",
    "HeldReason",
    "Hybrid",
    "OutOfBlocksError",
    "Overflow",
    "Padding",
    "PassThrough",
    "Percentiles",
    "Policy",
    "Preemption",
    "QueueClosedError",
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
    "Spin",
    "StaticBatcher",
    "StepCost",
    "StepPlan",
    "WaitStrategy",
    "Workload",
    "make_scheduler",
    "simulate",
    "yield_core",
]
