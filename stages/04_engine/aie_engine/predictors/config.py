"""Everything a predictor can be told, as one frozen value that also travels to its worker processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from aie_engine.config import KernelChoice
from aie_scheduler import DEFAULT_BUCKET_EDGES, Buckets, Overflow
from aie_tensor import InvalidInputError

__all__ = ["BatchPolicy", "PredictorConfig", "Waiting"]

BatchPolicy = Literal["dynamic", "static", "passthrough"]
Waiting = Literal["block", "spin", "hybrid"]
_LONGEST_S = 24 * 3600.0


@dataclass(frozen=True)
class PredictorConfig:
    """Raises `InvalidInputError` naming the field when a value makes no sense."""

    model_path: Path  # as `aie_loader.load_predictor` takes it
    model_name: str | None = None  # the name to serve; None: as the model file says
    head: str | None = None  # of an encoder: states, mean, cls, …; None: as its files say
    input_shape: tuple[int, ...] | None = None  # of one item, where no file says it
    kernels: KernelChoice = "auto"  # auto: native where a C compiler exists, else NumPy
    num_threads: int | None = None  # of all workers together; None: the cores this process may use
    max_batch_size: int = 32  # requests in a batch
    max_batch_tokens: int = 4096  # of texts: tokens in a batch, and in the longest text
    max_wait_ms: float = 5.0  # how long the first of a batch waits for company
    policy: BatchPolicy = "dynamic"  # static: full batches, or after a second; passthrough: one request at a time
    buckets: Buckets = "off"  # texts are packed, so unequal lengths cost nothing; a kernel that pads would want them
    bucket_edges: tuple[int, ...] = DEFAULT_BUCKET_EDGES  # tokens, for buckets "fixed": longest text of each
    num_buckets: int = 4  # for buckets "quantiles"
    preferred_sizes: tuple[int, ...] = ()  # batch sizes worth cutting at once
    adaptive_wait: bool = False  # wait only while company is to be expected
    share_weights: bool = True  # several workers map one copy of the packed weights, where the system can do that
    overlap: bool = False  # in this process: stage the next batch while one is computed; it is cut that much earlier
    max_queue: int = 1024  # requests that may wait
    queue_policy: Overflow = "reject"  # one more: refuse it, make its submitter wait, or give up who waited longest
    block_timeout_s: float = 10.0  # for "block": a submitter waits that long for room, and is then refused
    waiting: Waiting = "block"  # how the front waits for work: spin burns a core, hybrid does at high load
    batch_timeout_s: float | None = 300.0  # a worker that computes a batch for longer counts as hung, and is killed
    memdebug: bool = False  # record where every allocation came from
    memdebug_sample: int = 1  # of so many allocations one is recorded; with `memdebug`
    warm_up: bool = True  # run a small batch before the first request

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_path", Path(self.model_path))
        if self.kernels not in ("auto", "native", "numpy"):
            raise InvalidInputError(f"kernels must be auto, native or numpy, not {self.kernels!r}.", param="kernels")
        if self.policy not in get_args(BatchPolicy):
            raise InvalidInputError(
                f"policy must be {', '.join(get_args(BatchPolicy))}, not {self.policy!r}.", param="policy"
            )
        for field, known in (("queue_policy", get_args(Overflow)), ("waiting", get_args(Waiting))):
            if getattr(self, field) not in known:
                raise InvalidInputError(
                    f"{field} must be {', '.join(known)}, not {getattr(self, field)!r}.", param=field
                )
        for field in ("block_timeout_s", "batch_timeout_s"):
            seconds = getattr(self, field)
            if seconds is not None and not 0 < seconds <= _LONGEST_S:
                raise InvalidInputError(
                    f"{field} must be more than 0 and at most {_LONGEST_S:g}, not {seconds}.", param=field
                )
        for field in ("max_batch_size", "max_batch_tokens", "max_queue", "memdebug_sample", "num_threads"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InvalidInputError(f"{field} must be at least 1, not {value}.", param=field)
        if self.max_batch_tokens < self.max_batch_size:
            raise InvalidInputError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_batch_size ({self.max_batch_size}): "
                "every text has at least one token.",
                param="max_batch_tokens",
            )
