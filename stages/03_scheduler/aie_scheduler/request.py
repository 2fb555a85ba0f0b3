"""What goes in (`Request`) and what a scheduler remembers of it (`SequenceState`).

A scheduler knows lengths, never token ids. Three numbers say all about a sequence:

    P P P P P P P P S S S S S S      P prompt token, S sampled token
                    ^         ^ ^
           prompt_len         | num_tokens
                              num_computed: KV of all tokens before it is in the cache

`num_tokens` are known (prompt and sampled), `num_computed` of them have their keys and values in the cache. A step
computes some of the difference; when it reaches the end, the model's last row predicts one more token and
`num_tokens` grows by one. Prefill, decode and recomputation after a preemption are therefore one and the same thing,
only with a different difference.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aie_scheduler.prefix import CachedBlock

__all__ = ["NEVER", "BlockContent", "Request", "SequenceState", "SequenceStatus"]

NEVER = sys.maxsize  # more tokens than there will ever be

BlockContent = Callable[[int], bytes]  # i → what the i-th full block of known tokens holds, as bytes to be compared


class SequenceStatus(Enum):
    """Where a sequence stands. WAITING and PREEMPTED are in the queue, RUNNING holds blocks, FINISHED is forgotten."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as the scheduler sees it. Times are on the clock that `schedule(now)` is given."""

    request_id: str
    prompt_len: int  # tokens
    max_tokens: int  # most tokens to sample
    priority: int = 0  # lower runs sooner
    arrival_s: float = 0.0
    deadline_s: float | None = None  # absolute; past it the request is given up and reported in `plan.expired`
    client: str = ""  # whose it is, such as an API key: clients share a model fairly
    model: str = ""  # which model is to answer, where several share one scheduler: they share it fairly, never a batch
    cache_salt: str = ""  # requests of different salts never share cached blocks: one for each tenant
    block_content: BlockContent | None = None  # None: neither looks for cached blocks nor leaves any


@dataclass(slots=True, eq=False)
class SequenceState:
    """A live request. Compared by identity: there is one state per request."""

    request_id: str
    prompt_len: int
    num_tokens: int  # known tokens: prompt + sampled
    num_computed: int  # tokens whose KV is in the cache
    max_tokens: int
    priority: int
    order: int  # the scheduler's own count of arrivals: first come, first served within a priority
    arrival_s: float
    deadline_s: float | None
    client: str = ""
    model: str = ""
    cache_salt: str = ""
    block_content: BlockContent | None = None
    block_table: list[int] = field(default_factory=list)  # entry i holds positions [i*A, (i+1)*A)
    status: SequenceStatus = SequenceStatus.WAITING
    num_preemptions: int = 0
    furthest: int = 0  # most tokens it ever had in the cache: computing below that is recomputation
    is_long: bool = False  # has a prompt that is read in slices while others decode
    # Of the prefix cache (`prefix.py`):
    chain: "list[CachedBlock]" = field(default_factory=list)  # names of its full blocks, in order
    num_shared: int = 0  # of those, the ones that others had computed
    next_fill: int = NEVER  # tokens computed when its next block is full
    awaits: "CachedBlock | None" = None  # what a running request has promised to compute
    num_waits: int = 0  # how often it has waited so

    @classmethod
    def of(cls, request: Request, order: int) -> "SequenceState":
        """The state of a request that has just arrived."""
        return cls(
            request.request_id,
            request.prompt_len,
            request.prompt_len,
            0,
            request.max_tokens,
            request.priority,
            order,
            request.arrival_s,
            request.deadline_s,
            request.client,
            request.model,
            request.cache_salt,
            request.block_content,
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: who is served first. Also, reversed, who is preempted first."""
        return (self.priority, self.order)

    @property
    def num_remaining(self) -> int:
        """Known tokens that still have to go through the model."""
        return self.num_tokens - self.num_computed

    @property
    def num_sampled(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.prompt_len

    @property
    def max_cached(self) -> int:
        """Most tokens whose KV is ever stored: the last sampled token is returned but never computed."""
        return self.prompt_len + self.max_tokens - 1
