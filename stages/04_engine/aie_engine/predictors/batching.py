"""The batcher of a predictor, from its configuration and what is known of its model."""

from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.protocol import PredictorInfo
from aie_scheduler import DynamicBatcher, SchedulerConfig

__all__ = ["make_batcher"]


def make_batcher(config: PredictorConfig, info: PredictorInfo) -> DynamicBatcher:
    """Lengths are tokens of texts, and 1 for all else."""
    return DynamicBatcher(
        SchedulerConfig(
            max_batch_size=config.max_batch_size,
            max_batch_tokens=config.max_batch_tokens,
            max_queue=config.max_queue,
            num_blocks=0,
            max_seq_len=info.max_length or 1,
            max_wait_ms=config.max_wait_ms,
            bucket_edges=config.bucket_edges,
        )
    )
