"""The one configuration of stage 3, frozen and handed down."""

from dataclasses import dataclass
from typing import Literal, get_args

from aie_tensor import InvalidInputError

__all__ = ["DEFAULT_BUCKET_EDGES", "Buckets", "Padding", "Policy", "SchedulerConfig"]

Policy = Literal["continuous", "dynamic", "static", "passthrough"]
Buckets = Literal["fixed", "quantiles", "off"]
Padding = Literal["longest", "bucket", "packed"]

DEFAULT_BUCKET_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

_AT_LEAST_ONE = (
    "max_batch_size",
    "max_batch_tokens",
    "max_queue",
    "block_size",
    "max_seq_len",
    "num_buckets",
    "max_bypass",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits that every scheduler keeps. Raises `InvalidInputError` naming the field that makes no sense."""

    max_batch_size: int = 64  # sequences in one step
    max_batch_tokens: int = 512  # tokens in one step, prefill and decode together
    max_queue: int = 256  # requests that may wait; one more is refused with 503
    block_size: int = 16  # tokens in one KV block
    num_blocks: int  # KV blocks there are; 0 for models without a KV cache
    policy: Policy = "continuous"  # which scheduler `make_scheduler` makes
    max_bypass: int = 256  # requests that may go before one of lower priority that waits
    max_seq_len: int  # tokens of prompt and output together that the model can attend to
    max_prefill_tokens: int | None = 256  # prompt tokens in a step while others decode, and the longest prompt that is
    # then read whole (`slices.py`); None: no limit of its own
    prefix_caching: bool = True  # continuous batching: equal beginnings are computed once and shared
    prefill_share: float = 0.875  # of a step's free tokens, what one unfinished prompt takes at most if others follow
    max_wait_ms: float = 20.0  # dynamic batching: how long the first of a batch waits for company
    bucket_edges: tuple[int, ...] = DEFAULT_BUCKET_EDGES  # dynamic batching: longest prompt of each length bucket
    buckets: Buckets = "fixed"  # dynamic batching: edges as given, quantiles of the recent traffic, or one for all
    num_buckets: int = 4  # dynamic batching: how many, where the edges are quantiles
    padding: Padding = "longest"  # dynamic batching: a batch is a rectangle as wide as its longest member, or as its
    # bucket's edge, or it has no padding at all
    preferred_sizes: tuple[int, ...] = ()  # dynamic batching: sizes worth cutting at once, as the kernels like them
    adaptive_wait: bool = False  # dynamic batching: wait only while company is to be expected

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {getattr(self, name)}", param=name)
        if self.max_prefill_tokens is not None and self.max_prefill_tokens < 1:
            raise InvalidInputError(
                f"max_prefill_tokens must be at least 1, not {self.max_prefill_tokens}", param="max_prefill_tokens"
            )
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
        for name, known in (("policy", Policy), ("buckets", Buckets), ("padding", Padding)):
            if getattr(self, name) not in get_args(known):
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(get_args(known))}", param=name
                )
        for size in self.preferred_sizes:
            if not 1 <= size <= self.max_batch_size:
                raise InvalidInputError(
                    f"preferred_sizes has {size}; sizes are from 1 to max_batch_size, which is {self.max_batch_size}",
                    param="preferred_sizes",
                )
        if not self.bucket_edges or list(self.bucket_edges) != sorted(set(self.bucket_edges)):
            raise InvalidInputError(f"bucket_edges must rise, unlike {self.bucket_edges}", param="bucket_edges")

    def blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens` tokens: position p lives in block p // block_size, so this rounds up."""
        return -(-num_tokens // self.block_size)
