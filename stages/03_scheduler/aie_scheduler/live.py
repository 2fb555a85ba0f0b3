"""The continuous batcher at real work on the real clock: what batching brings here, with nothing assumed.

The work has the shape of a model's step without being one: bytes that stand for the weights are read once per step, and
a few more for every token. Reading is a checksum over memory, so real bytes go through a real core.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from time import perf_counter

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.continuous import ContinuousBatcher
from aie_scheduler.request import Request

__all__ = ["ByteReader", "LiveResult", "run_live"]


class ByteReader:
    """The work of a step of `num_tokens` tokens: `weight_bytes` once, `token_bytes` for each token."""

    def __init__(self, weight_bytes: int = 8 << 20, token_bytes: int = 128 << 10) -> None:
        self._weights = bytes(weight_bytes)
        self._token = bytes(token_bytes)

    def __call__(self, num_tokens: int) -> None:
        zlib.crc32(self._weights)
        for _ in range(num_tokens):
            zlib.crc32(self._token)


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Times in seconds; a request waits from its arrival to its first token."""

    max_batch_size: int
    tokens_per_s: float
    mean_wait_s: float
    longest_wait_s: float
    mean_batch: float


def run_live(
    max_batch_size: int,
    work: Callable[[int], None],
    *,
    num_requests: int = 24,
    prompt_len: int = 8,
    max_tokens: int = 12,
    clock: Callable[[], float] = perf_counter,
) -> LiveResult:
    """Serve `num_requests` that arrive together, `work(tokens of the step)` being done at every step."""
    config = SchedulerConfig(
        max_batch_size=max_batch_size,
        max_batch_tokens=max(64, max_batch_size),
        max_queue=num_requests,
        num_blocks=num_requests * 2,
        max_seq_len=32,
    )
    scheduler = ContinuousBatcher(config)
    for index in range(num_requests):
        scheduler.add(Request(request_id=f"r{index}", prompt_len=prompt_len, max_tokens=max_tokens))
    sampled: dict[str, int] = {}
    waits_s: list[float] = []
    batches: list[int] = []
    start_s = clock()
    while (plan := scheduler.schedule(clock())) is not None:
        work(plan.num_tokens)
        finished = []
        for chunk in plan.chunks:
            if not chunk.samples:
                continue
            if chunk.request_id not in sampled:
                waits_s.append(clock() - start_s)
            sampled[chunk.request_id] = sampled.get(chunk.request_id, 0) + 1
            if sampled[chunk.request_id] == max_tokens:
                finished.append(chunk.request_id)
        batches.append(len(plan.chunks))
        scheduler.update(plan, finished)
    wall_s = clock() - start_s
    return LiveResult(max_batch_size, sum(sampled.values()) / wall_s, mean(waits_s), max(waits_s), mean(batches))
