"""Where a request's time went, as it crosses the pipe and as `/debug/requests` shows it.

Times are whole microseconds, so that the phases of a request add up to its time exactly, and not but for rounding.
Instants (`*_s`) are on the clock of `time.monotonic`, which processes of a machine share.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

__all__ = ["ENGINE_PHASES", "Explanation", "QueueReport", "Share", "TimelineEvent", "TimelineReport", "whole_us"]

ENGINE_PHASES: Final[Mapping[str, str]] = {
    "compiling": "before the queue, until the form of its answer was compiled",
    "turn": "in the queue until the running step ended and its turn came",
    "batch_full": "in the queue: the batch had no place",
    "budget": "in the queue: the tokens of the steps went to others",
    "prefix": "in the queue until another request has computed the prefix that both share",
    "blocks": "in the queue: too few KV blocks were free",
    "prefill": "in steps that computed its prompt",
    "paused": "in the batch, but not in the step: the step's tokens went to others",
    "decode": "in steps that computed its next token, as long as these would have taken without prompts in them",
    "stalled": "in the same steps, what the prompts of others in them took on top",
    "preempted": "in the queue again, after it lost its KV blocks",
    "recompute": "in steps that computed again what it had lost",
    "between": "between two steps: the engine's news and commands",
}


class Share(msgspec.Struct, frozen=True):
    """How much another request had to do with it."""

    request_id: str  # empty: all the others together
    us: int = 0
    blocks: int = 0  # most KV blocks that it held meanwhile
    times: int = 0


class TimelineEvent(msgspec.Struct, frozen=True):
    """Something that happens seldom: `admitted` to the batch, or `preempted`."""

    at_us: int  # after the engine took the request in
    what: str
    tokens: int  # admitted: got from the prefix cache; preempted: lost
    by: str = ""  # preempted: by whom


class TimelineReport(msgspec.Struct, frozen=True):
    """One request in the engine. `phases_us` has every name of `ENGINE_PHASES` and sums to `total_us`."""

    request_id: str
    state: str  # compiling, waiting, prefill, decode; or how it ended
    is_open: bool
    added_s: float
    total_us: int
    phases_us: dict[str, int]
    first_token_us: int | None  # after `added_s`
    prompt_tokens: int
    cached_tokens: int  # of the prompt (and of what was lost), got from the prefix cache
    prefill_steps: int
    prefill_tokens: int
    recomputed_tokens: int
    decode_steps: int
    generated_tokens: int
    drafted_tokens: int  # guesses that were computed
    accepted_tokens: int  # of those, right, as all before them
    preemptions: int
    lost_tokens: int
    preempted_by: list[Share]
    held_by: list[Share]  # who had the KV blocks (or computed the prefix) that it waited for
    stalled_by: list[Share]  # whose prompts the `stalled` time went to
    events: list[TimelineEvent]  # the first of them
    num_events: int


class QueueReport(msgspec.Struct, frozen=True):
    """Why nobody is admitted at the moment, if anybody waits: the reason of the first in the queue."""

    request_id: str
    reason: str  # batch_full, budget, prefix, blocks
    for_us: int  # so long by now
    blocks_needed: int
    blocks_free: int
    holders: list[Share]


class Explanation(msgspec.Struct, frozen=True):
    """An engine's answer. `requests`: those that were asked for and are known; else the open ones, then those that
    ended last, the latest first."""

    requests: list[TimelineReport]
    queue: QueueReport | None
    num_open: int
    num_kept: int  # of those that ended
    max_kept: int


def whole_us(seconds: Iterable[float]) -> list[int]:
    """Microseconds that sum to the rounded sum: each number is the growth of the rounded running sum."""
    rounded: list[int] = []
    total, before = 0.0, 0
    for value in seconds:
        total += max(0.0, value)
        now = round(total * 1e6)
        rounded.append(now - before)
        before = now
    return rounded
