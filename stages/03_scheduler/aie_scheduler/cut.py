"""Why a batch was sent off when it was, and what it costs: the record of one decision."""

from dataclasses import dataclass
from enum import Enum

from aie_scheduler.config import Padding

__all__ = ["BatchCut", "CutReason", "num_slots"]


class CutReason(Enum):
    """What ended the wait."""

    FULL = "full"  # it holds max_batch_size requests or max_batch_tokens tokens: waiting longer brings nothing
    PREFERRED = "preferred"  # it holds a size that was asked for
    DRAINED = "drained"  # nobody else is coming
    WAITED = "waited"  # its oldest member has waited max_wait_ms
    DEADLINE = "deadline"  # a member would miss its deadline otherwise
    QUIET = "quiet"  # nobody is to be expected in time (adaptive waiting)


@dataclass(frozen=True, slots=True)
class BatchCut:
    """One batch."""

    reason: CutReason
    bucket_edge: int  # tokens: longest prompt its bucket takes
    num_requests: int
    num_tokens: int  # of the prompts
    longest: int  # tokens: length of the longest prompt
    waited_s: float  # by its oldest member
    num_slots: int  # tokens that are computed, padding included

    @property
    def padding_share(self) -> float:
        """What part of the computed tokens is padding, 0 to 1."""
        return 1.0 - self.num_tokens / self.num_slots


def num_slots(padding: Padding, *, num_requests: int, num_tokens: int, longest: int, edge: int) -> int:
    """Tokens that a batch computes: a rectangle as wide as its longest member, or as its bucket, or no rectangle."""
    if padding == "packed":
        return num_tokens
    return num_requests * (longest if padding == "longest" else edge)
