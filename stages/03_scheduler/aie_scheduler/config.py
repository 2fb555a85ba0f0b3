"""The one configuration of stage 3, frozen and handed down."""

from dataclasses import dataclass

from aie_tensor import InvalidInputError

__all__ = ["DEFAULT_BUCKET_EDGES", "SchedulerConfig"]

DEFAULT_BUCKET_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits that every scheduler keeps. Raises `InvalidInputError` naming the field that makes no sense."""

    max_batch_size: int = 64  # sequences in one step
    max_batch_tokens: int = 512  # tokens in one step, prefill and decode together
    max_queue: int = 256  # requests that may wait; one more is refused with 503
    block_size: int = 16  # tokens in one KV block
    num_blocks: int  # KV blocks there are; 0 for models without a KV cache
    max_seq_len: int  # tokens of prompt and output together that the model can attend to
    prefill_share: float = 0.875  # of a step's free tokens, what one unfinished prompt takes at most if others follow
    max_wait_ms: float = 20.0  # dynamic batching: how long the first of a batch waits for company
    bucket_edges: tuple[int, ...] = DEFAULT_BUCKET_EDGES  # dynamic batching: longest prompt of each length bucket

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_batch_tokens", "max_queue", "block_size", "max_seq_len"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {getattr(self, name)}", param=name)
        if self.num_blocks < 0:
            raise InvalidInputError(f"num_blocks must not be negative, but is {self.num_blocks}", param="num_blocks")
        if self.max_batch_tokens < self.max_batch_size:
            # Otherwise some running sequence would get no token in a step, and latency would lose its meaning.
            raise InvalidInputError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_batch_size ({self.max_batch_size}), "
                "so that every running sequence can decode one token per step",
                param="max_batch_tokens",
            )
        if not 0.0 < self.prefill_share <= 1.0:
            raise InvalidInputError(f"prefill_share must be in (0, 1], not {self.prefill_share}", param="prefill_share")
        if not 0.0 <= self.max_wait_ms < float("inf"):
            raise InvalidInputError(f"max_wait_ms must be 0 or more, not {self.max_wait_ms}", param="max_wait_ms")
        if not self.bucket_edges or list(self.bucket_edges) != sorted(set(self.bucket_edges)):
            raise InvalidInputError(f"bucket_edges must rise, unlike {self.bucket_edges}", param="bucket_edges")

    def blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens` tokens: position p lives in block p // block_size, so this rounds up."""
        return -(-num_tokens // self.block_size)
