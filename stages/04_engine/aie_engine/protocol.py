"""What every engine offers, whether it runs in a thread of this process or in a process of its own."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from aie_engine.requests import GenerateRequest
from aie_engine.stats import EngineStats
from aie_engine.streams import TokenStream
from aie_engine.timeline_report import Explanation

__all__ = ["EngineClient", "EngineInfo"]


class EngineInfo(msgspec.Struct, frozen=True):
    """What does not change while an engine lives."""

    model_name: str
    max_seq_len: int  # prompt and answer together
    vocab_size: int
    max_batch_size: int
    num_kv_blocks: int
    block_size: int
    kernels: Literal["native", "numpy"]
    num_threads: int
    eos_token_ids: tuple[int, ...]
    max_queue: int = 256
    load_s: float = 0.0  # loading, packing and warming up
    weight_bytes: int = 0


class EngineClient(Protocol):
    """Thread-safe. Everything above the engine (HTTP, reliability, commands) sees only this."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def is_alive(self) -> bool: ...

    def submit(self, request: GenerateRequest) -> TokenStream:
        """Queue a request, without waiting for anybody. Raises `QueueFullError` (503), `RequestTooLongError` and
        `InvalidInputError` (400), and `EngineDeadError` (503) before anything is queued; whatever goes wrong later is
        the stream's last event."""
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a request at the next step; unknown and finished ones are ignored."""
        ...

    def stats(self) -> EngineStats:
        """Fresh figures, for which a running step is waited for (a second at most, then the last ones known)."""
        ...

    def memory(self) -> Mapping[str, object]:
        """What the engine's process holds and for whom, taken between two steps: `MemorySnapshot.to_json()` of stage 1.
        Its groups name call stacks only with `memdebug`. Raises `EngineDeadError` when the engine is dead or does not
        answer within ten seconds."""
        ...

    def explain(self, request_ids: Sequence[str] | None = None, *, num_ended: int = 0) -> Explanation:
        """Where the time of requests went, those named that are open or remembered; without names those that are open,
        and `num_ended` of those that ended last. Raises `EngineDeadError` as `memory` does."""
        ...

    def close(self, timeout_s: float = 10.0) -> None:
        """End all open requests and release everything. A second call does nothing."""
        ...
