"""Static batching: batches of a fixed number, in the queue's order. The batcher one would write first.

It waits until `max_batch_size` requests are there, however long that takes and whatever their lengths. Under load it is
as good as any; at night two requests wait for six others. Only three things cut it short: `drain()`, a member's
deadline, and `patience_s`, so that nobody waits for ever.

It is kept as a yardstick: what two thresholds and length buckets bring is the difference.
"""

from dataclasses import replace

from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.dynamic import DynamicBatcher

__all__ = ["StaticBatcher"]


class StaticBatcher(DynamicBatcher):
    """A dynamic batcher without its virtues: no buckets, no preferred sizes, no `max_wait_ms`."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        allocator: BlockAllocator | None = None,
        generates: bool = False,
        patience_s: float = 1.0,
    ) -> None:
        plain = replace(config, buckets="off", preferred_sizes=(), adaptive_wait=False, max_wait_ms=patience_s * 1e3)
        super().__init__(plain, allocator=allocator, generates=generates)
