"""Length buckets: requests of similar length wait together.

Where a batch is a rectangle, short requests are padded to the longest one and the padding is computed like everything
else. With edges that double, a request is longer than half of its bucket's edge (the first bucket aside), so less
than half of the rectangle is padding.
"""

from bisect import bisect_left
from collections.abc import Sequence

from aie_scheduler.queue import BoundedQueue
from aie_scheduler.request import SequenceState

__all__ = ["BucketRow", "LengthBucket"]


class LengthBucket:
    """Waiting requests whose prompts are at most `edge` tokens, and longer than the bucket before allows."""

    def __init__(self, edge: int, max_queue: int) -> None:
        self.edge = edge
        self.members = BoundedQueue(max_queue)
        self.num_tokens = 0  # of all prompts in it

    def push(self, state: SequenceState) -> None:
        """Join in order of rank."""
        self.members.push(state)
        self.num_tokens += state.prompt_len

    def remove(self, state: SequenceState) -> None:
        """Leave, for a batch or for good."""
        self.members.remove(state)
        self.num_tokens -= state.prompt_len

    def oldest_s(self) -> float:
        """Arrival of whoever has waited longest (not always the head: priorities go first)."""
        return min(state.arrival_s for state in self.members)

    def nearest_deadline_s(self) -> float:
        """The first deadline among the members; infinity when none has one."""
        return min((state.deadline_s for state in self.members if state.deadline_s is not None), default=float("inf"))


class BucketRow:
    """All buckets, by rising edge; the last one takes everything up to `max_len`."""

    def __init__(self, edges: Sequence[int], max_len: int, max_queue: int) -> None:
        self._edges = [edge for edge in edges if edge < max_len] + [max_len]
        self._buckets = [LengthBucket(edge, max_queue) for edge in self._edges]

    def of(self, state: SequenceState) -> LengthBucket:
        """The bucket of a request: the first whose edge is not below its prompt's length."""
        return self._buckets[bisect_left(self._edges, state.prompt_len)]

    def occupied(self) -> list[LengthBucket]:
        """Buckets in which somebody waits."""
        return [bucket for bucket in self._buckets if len(bucket.members)]
