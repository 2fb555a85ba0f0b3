"""One configuration value chooses the scheduler; nothing else changes."""

from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.config import SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.dynamic import DynamicBatcher
from aie_scheduler.passthrough import PassThrough
from aie_scheduler.protocol import Scheduler
from aie_scheduler.static import StaticBatcher
from aie_tensor import InvalidInputError

__all__ = ["make_scheduler"]


def make_scheduler(
    config: SchedulerConfig, *, allocator: BlockAllocator | None = None, generates: bool = True
) -> Scheduler:
    """The scheduler that `config.policy` names. `generates=False`: predictions, each done after one step.

    Raises `InvalidInputError` for continuous batching of predictions: there is no second step that one could join.
    """
    if config.policy == "dynamic":
        return DynamicBatcher(config, allocator=allocator, generates=generates)
    if config.policy == "static":
        return StaticBatcher(config, allocator=allocator, generates=generates)
    if config.policy == "passthrough":
        return PassThrough(config, allocator=allocator, generates=generates)
    if not generates:
        raise InvalidInputError(
            "policy continuous is for models that generate; predictions take dynamic, static or passthrough",
            param="policy",
        )
    return ContinuousBatcher(config, allocator=allocator)
