"""What every predictor offers, whether its model runs in a thread of this process or in processes of its own."""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from aie_engine.predictors.requests import BatchFacts, PredictFuture, PredictRequest
from aie_scheduler import Overflow

__all__ = ["ArrayInfo", "PredictorClient", "PredictorInfo", "PredictorStats", "WorkerStats"]


class ArrayInfo(msgspec.Struct, frozen=True):
    """An input or output of one item."""

    name: str
    shape: tuple[int, ...]  # without the batch axis; -1 for an axis that differs from item to item, such as tokens
    dtype: str  # NumPy's name
    limit: int | None = None  # of indices: they lie below it
    is_optional: bool = False  # zeros where it is not given


class PredictorInfo(msgspec.Struct, frozen=True):
    """What does not change while a predictor lives."""

    name: str
    architecture: str
    inputs: tuple[ArrayInfo, ...]
    outputs: tuple[ArrayInfo, ...]
    output: str  # what the first output is, as `aie_loader.Predictor.output` says: embedding, logits, …
    labels: tuple[str, ...]
    problem: str | None  # how logits are to be read: single_label, multi_label, regression
    max_length: int | None  # longest text in tokens, special ones included; None: no text
    reads_text: bool  # items are texts, as token ids
    max_batch_size: int
    max_queue: int
    kernels: Literal["native", "numpy"]
    num_threads: int  # of each worker
    num_workers: int = 1
    load_s: float = 0.0  # loading, packing and warming up, of one worker
    weight_bytes: int = 0  # as stored in the file
    queue_policy: Overflow = "reject"


class WorkerStats(msgspec.Struct, frozen=True, array_like=True):
    """One worker since the predictor's start."""

    index: int
    pid: int  # 0 while there is no process
    is_ready: bool  # can be given a batch, now or after the one under way
    is_busy: bool
    batches: int
    rows: int  # requests in them
    compute_s: float
    restarts: int


class PredictorStats(msgspec.Struct, frozen=True, array_like=True):
    """`num_waiting` and `num_running` are of now; the rest counts from the start of the predictor."""

    num_waiting: int = 0
    num_running: int = 0  # in batches under way
    num_done: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_expired: int = 0
    num_refused: int = 0  # by a full queue, a closed predictor, or a bad input
    batches: int = 0
    rows: int = 0  # requests in them
    reasons: dict[str, int] = {}  # batches by why they were cut; msgspec copies the default
    padding_share: float = 0.0  # mean over batches of what a rectangle would have wasted
    pre_s: float = 0.0
    compute_s: float = 0.0
    max_batch_size: int = 1
    resent_batches: int = 0  # after their worker died
    workers: tuple[WorkerStats, ...] = ()
    num_dropped: int = 0  # to let newer ones in, where the queue drops the oldest
    stuck_s: float = 0.0  # every worker has been at a batch, or at its new start, for so long; 0: one is idle
    usual_batch_s: float = 0.0  # what a batch took lately, from being handed out to its results
    batch_sizes: dict[int, int] = {}  # batches by how many requests were in them

    @property
    def mean_batch_size(self) -> float:
        """Requests per batch."""
        return self.rows / self.batches if self.batches else 0.0

    @property
    def utilisation(self) -> float:
        """Mean part of `max_batch_size` that was filled, 0 to 1."""
        return self.mean_batch_size / self.max_batch_size


class PredictorClient(Protocol):
    """Thread-safe. Everything above the engine sees only this."""

    @property
    def info(self) -> PredictorInfo: ...

    @property
    def is_alive(self) -> bool: ...

    def submit(self, request: PredictRequest) -> PredictFuture:
        """Queue a request. Raises `InvalidInputError` (400) for inputs that the model cannot take, `QueueFullError`
        and `EngineDeadError` (503) before anything is queued; whatever goes wrong later is what the future raises.
        Where the policy of the queue is to block, it waits for room: not to be called from a future's callback."""
        ...

    def stats(self) -> PredictorStats: ...

    def memory(self) -> Mapping[str, object]:
        """What each process that computes holds, by its name: `MemorySnapshot.to_json()` of stage 1."""
        ...

    def watch(self, on_batch: Callable[[BatchFacts], None] | None) -> None:
        """Have `on_batch` told of each batch from now on, as who waited longest in it was; None: nobody. It is called
        by the thread that computes, and must neither raise nor wait."""
        ...

    def drain(self) -> None:
        """Hardly anybody will come any more: who waits for company is computed without it. Returns at once."""
        ...

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish the batches under way, fail all who wait, release everything. A second call does nothing."""
        ...
