"""What goes into the engine and what comes out: a request, then token events until one carries a finish reason.

These are msgspec structs rather than dataclasses because one is made for every request at every step: making one is
cheaper than making a frozen dataclass, and it crosses the pipe between processes as it stands.
"""

from typing import Literal

import msgspec

from aie_engine.constraints.spec import ConstraintSpec
from aie_engine.params import SamplingParams

__all__ = ["ErrorInfo", "FinishReason", "GenerateRequest", "TokenEvent", "TokenLogprobs"]

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]


class GenerateRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One prompt to continue."""

    request_id: str  # unique among the open requests of an engine
    prompt_ids: tuple[int, ...]  # at least one token
    sampling: SamplingParams
    deadline_s: float | None = None  # absolute, on the clock of `time.monotonic`, which processes of a machine share
    priority: int = 0  # lower runs first
    client: str = ""  # whose it is: clients share the engine fairly
    cache_salt: str = ""  # requests of different salts never share cached prompts; whoever separates tenants sets it
    constraint: ConstraintSpec | None = None  # a form that the answer must have


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one token under the raw logits, with the likeliest alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), likeliest first
    rank: int | None = None  # 1 for the likeliest; of tokens of a prompt only


class ErrorInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An error that crossed a thread or a process: what a client may see of it."""

    code: str
    message: str
    status: int = 500
    retry_after_s: float | None = None
    param: str | None = None  # the field of the request that is to blame


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """News of one request. The last event of a request, and only the last, has a `finish_reason`.

    A token that ends the generation (end of sequence or a stop token) is in `token_ids`, because it was computed and
    is counted, and is named by `stop_token_id`, so that whoever writes text can leave it out.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # empty, or one for each of `token_ids`
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: ErrorInfo | None = None  # with finish_reason "error"
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of those, how many a prefix cache spared
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of the next tokens of the prompt, from its second on
