"""The batcher of a predictor and the front around it, from its configuration and what is known of its model."""

from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.front import BatchFront
from aie_engine.predictors.protocol import PredictorInfo
from aie_scheduler import Hybrid, Scheduler, SchedulerConfig, Spin, WaitStrategy, make_scheduler

__all__ = ["make_batcher", "make_front"]


def make_batcher(config: PredictorConfig, max_length: int | None = None) -> Scheduler:
    """Lengths are tokens of texts, at most `max_length`, and 1 for all else.

    Raises `InvalidInputError` for limits that do not go together.
    """
    return make_scheduler(
        SchedulerConfig(
            policy=config.policy,
            max_batch_size=config.max_batch_size,
            max_batch_tokens=config.max_batch_tokens,
            max_queue=config.max_queue,
            num_blocks=0,
            max_seq_len=max_length or 1,
            max_wait_ms=config.max_wait_ms,
            buckets=config.buckets,
            bucket_edges=config.bucket_edges,
            num_buckets=config.num_buckets,
            padding="packed",
            preferred_sizes=config.preferred_sizes,
            adaptive_wait=config.adaptive_wait,
        ),
        generates=False,
    )


def make_front(config: PredictorConfig, info: PredictorInfo) -> BatchFront:
    """Without lanes yet."""
    return BatchFront(
        info,
        make_batcher(config, info.max_length),
        queue_policy=config.queue_policy,
        block_timeout_s=config.block_timeout_s,
        waiting=_strategy(config),
    )


def _strategy(config: PredictorConfig) -> WaitStrategy | None:
    """None blocks, and need not be asked."""
    if config.waiting == "block":
        return None
    return Spin() if config.waiting == "spin" else Hybrid()
