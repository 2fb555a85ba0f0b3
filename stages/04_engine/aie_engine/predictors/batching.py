"""The batcher of a predictor, from its configuration and what is known of its model."""

from aie_engine.predictors.config import PredictorConfig
from aie_scheduler import Scheduler, SchedulerConfig, make_scheduler

__all__ = ["make_batcher"]


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
