"""Length buckets: requests of similar length wait together, and of one model only.

Where a batch is a rectangle, short requests are padded to the longest one and the padding is computed like everything
else. With edges that double, a request is longer than half of its bucket's edge (the first bucket aside), so less
than half of the rectangle is padding. Edges may also follow the traffic: quantiles of the recent lengths give every
bucket the same share of the requests, so that no bucket waits long for company.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.fair import FairShare
from aie_scheduler.gaps import ArrivalGaps
from aie_scheduler.queue import BoundedQueue
from aie_scheduler.request import SequenceState, SequenceStatus

__all__ = ["BucketRow", "LengthBucket", "quantile_edges"]

NUM_RECENT = 1024  # lengths that quantiles are taken of
RELEARN_EVERY = 256  # arrivals
REBUILD_SLACK = 64  # dead entries that a heap may hold beyond the living


class _Earliest:
    """The least of a number over the waiting members. Entries of those that left are dropped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SequenceState]] = []

    def add(self, moment_s: float, state: SequenceState) -> None:
        heappush(self._heap, (moment_s, state.order, state))

    def get(self, num_live: int) -> float:
        """Infinity when there is none."""
        heap = self._heap
        while heap and heap[0][2].status is not SequenceStatus.WAITING:
            heappop(heap)
        if len(heap) > 2 * num_live + REBUILD_SLACK:
            heap[:] = [entry for entry in heap if entry[2].status is SequenceStatus.WAITING]
            heapify(heap)
        return heap[0][0] if heap else float("inf")


class LengthBucket:
    """Waiting requests whose prompts are at most `edge` tokens, and longer than the bucket before allows."""

    def __init__(self, edge: int, members: BoundedQueue, gaps: ArrivalGaps) -> None:
        self.edge = edge
        self.members = members
        self.gaps = gaps
        self.num_tokens = 0  # of all prompts in it
        self.num_passed = 0  # requests of other buckets that went while this one was ripe
        self._arrivals = _Earliest()
        self._deadlines = _Earliest()

    def push(self, state: SequenceState) -> None:
        """Join in order of rank."""
        self.members.push(state)
        self.num_tokens += state.prompt_len
        self._arrivals.add(state.arrival_s, state)
        if state.deadline_s is not None:
            self._deadlines.add(state.deadline_s, state)

    def take(self, state: SequenceState) -> None:
        """Leave for a batch."""
        self.members.take(state)
        self.num_tokens -= state.prompt_len

    def remove(self, state: SequenceState) -> None:
        """Leave for good."""
        self.members.remove(state)
        self.num_tokens -= state.prompt_len

    def oldest_s(self) -> float:
        """Arrival of whoever has waited longest (not always the head: priorities and fair shares go first)."""
        return self._arrivals.get(len(self.members))

    def nearest_deadline_s(self) -> float:
        """The first deadline among the members; infinity when none has one."""
        return self._deadlines.get(len(self.members))


class _ModelRow:
    """The buckets of one model, by rising edge; the last one takes everything up to `max_seq_len`."""

    def __init__(self, config: SchedulerConfig, fair: FairShare) -> None:
        self._config = config
        self._fair = fair
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)
        self._num_arrivals = 0
        self._set_edges(config.bucket_edges if config.buckets == "fixed" else ())

    def push(self, state: SequenceState) -> None:
        if self._config.buckets == "quantiles":
            self._learn(state.prompt_len)
        bucket = self.of(state)
        bucket.gaps.arrive(state.arrival_s)
        bucket.push(state)

    def of(self, state: SequenceState) -> LengthBucket:
        return self.buckets[bisect_left(self.edges, state.prompt_len)]

    def _learn(self, length: int) -> None:
        self._recent.append(length)
        self._num_arrivals += 1
        if self._num_arrivals % RELEARN_EVERY:
            return
        edges = quantile_edges(list(self._recent), self._config.num_buckets)
        if [*edges, self._config.max_seq_len] == self.edges:
            return
        waiting = [state for bucket in self.buckets for state in bucket.members]
        self._set_edges(edges)
        for state in sorted(waiting, key=lambda state: state.order):
            self.of(state).push(state)

    def _set_edges(self, edges: tuple[int, ...]) -> None:
        config = self._config
        self.edges = [edge for edge in edges if edge < config.max_seq_len] + [config.max_seq_len]
        self.buckets = [
            LengthBucket(
                edge,
                BoundedQueue(config.max_queue, fair=self._fair, max_bypass=config.max_bypass),
                ArrivalGaps(2 * config.max_wait_ms / 1e3),
            )
            for edge in self.edges
        ]


class BucketRow:
    """All buckets of all models."""

    def __init__(self, config: SchedulerConfig, fair: FairShare) -> None:
        self._config = config
        self._fair = fair
        self._rows: dict[str, _ModelRow] = {}

    def push(self, state: SequenceState) -> None:
        """Join the bucket of its model and length."""
        row = self._rows.get(state.model)
        if row is None:
            row = self._rows[state.model] = _ModelRow(self._config, self._fair)
        row.push(state)

    def of(self, state: SequenceState) -> LengthBucket:
        """The bucket of a waiting request: the first whose edge is not below its prompt's length."""
        return self._rows[state.model].of(state)

    def occupied(self) -> Iterator[LengthBucket]:
        """Buckets in which somebody waits."""
        return (bucket for row in self._rows.values() for bucket in row.buckets if len(bucket.members))

    def edges(self, model: str = "") -> tuple[int, ...]:
        """The present edges of a model's buckets; none before its first request."""
        row = self._rows.get(model)
        return tuple(row.edges) if row is not None else ()


def quantile_edges(lengths: list[int], num_buckets: int) -> tuple[int, ...]:
    """Rising edges that cut the lengths into `num_buckets` parts of about equal number; the last part is open."""
    ordered = sorted(lengths)
    return tuple(sorted({ordered[max(0, len(ordered) * part // num_buckets - 1)] for part in range(1, num_buckets)}))
