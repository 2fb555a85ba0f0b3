"""What `/debug/requests` must answer for it to be shown. The address may be anybody's: a field of another type is no
request, and said to be none, before a table is made of it."""

from collections.abc import Mapping
from typing import Annotated, Any, Required, TypedDict

import msgspec

__all__ = ["check_listing", "check_request"]

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Us = Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class _Share(TypedDict, total=False):
    who: Required[str]
    blocks: _Count
    us: _Us


class _Batch(TypedDict):
    size: _Count
    cut: str


class _Listed(TypedDict, total=False):
    request_id: Required[str]
    state: Required[str]
    total_us: Required[_Us]
    status: int | None
    phases_us: dict[str, _Us]
    prompt_tokens: _Count
    generated_tokens: _Count
    num_inputs: _Count
    preemptions: _Count
    held_by: list[_Share]
    stalled_by: list[_Share]
    batch: _Batch


class _Queue(TypedDict, total=False):
    request_id: str
    reason: str
    for_us: _Us
    holders: list[_Share]


class _Listing(TypedDict):
    open: list[_Listed]
    recent: list[_Listed]
    queues: dict[str, _Queue]
    num_open_of_others: _Count
    unanswered: dict[str, str]


class _Engine(TypedDict, total=False):
    prompt_tokens: Required[_Count]
    cached_tokens: Required[_Count]
    generated_tokens: Required[_Count]
    decode_steps: Required[_Count]
    drafted_tokens: Required[_Count]
    accepted_tokens: Required[_Count]
    preemptions: Required[_Count]
    lost_tokens: Required[_Count]
    recomputed_tokens: Required[_Count]
    preempted_by: Required[list[_Share]]
    held_by: list[_Share]
    stalled_by: list[_Share]


class _Choice(TypedDict, total=False):
    index: Required[_Count]
    state: Required[str]
    total_us: Required[_Us]
    phases_us: Required[dict[str, _Us]]
    finish_reason: str | None
    first_token_us: _Us | None
    why_no_engine: str
    engine: _Engine | None


class _Request(_Listed, total=False):
    path: Required[str]
    model: Required[str]
    num_of_same_id: _Count
    blocked_us: _Us
    choices: list[_Choice]


def check_listing(document: object) -> Mapping[str, Any]:
    """As `/debug/requests` answers. Raises ValueError."""
    msgspec.convert(document, _Listing)  # its error is a ValueError, and names the field
    assert isinstance(document, dict)
    return document


def check_request(document: object) -> Mapping[str, Any]:
    """As `/debug/requests/{id}` answers. Raises ValueError."""
    msgspec.convert(document, _Request)
    assert isinstance(document, dict)
    return document
