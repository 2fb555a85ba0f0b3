"""What the rows of a step come to for one request: which of the sampled tokens count, and the news of them."""

from aie_engine.generation import Generation
from aie_engine.requests import ErrorInfo, FinishReason, TokenEvent, TokenLogprobs
from aie_engine.sampling import SampleOutput
from aie_engine.speculation import Speculator
from aie_scheduler import ScheduledChunk

__all__ = ["take_chunk", "take_several"]

_NOT_NUMBERS = ErrorInfo("engine_fault", "The model's output for this request was not a number; the request was ended.")
_NO_TOKEN_LEFT = ErrorInfo(
    "no_token_allowed",
    "What the request allows and forbids leaves no token to go on with; allow more tokens, or lower min_tokens.",
    400,
)


def take_chunk(
    chunk: ScheduledChunk, member: Generation, output: SampleOutput, row: int, speculator: Speculator | None
) -> TokenEvent | ErrorInfo:
    """The news of `member`, whose `chunk` has sampled from `row` on; or why it cannot go on."""
    fault = member.fault or _fault_of(output, row)
    if fault is not None:
        return fault
    if chunk.num_drafts:
        event, num_right, num_checked = take_several(member, output, row, chunk.num_drafts)
        if speculator is not None:
            speculator.settle(member, num_right, num_checked)
        if event.token_ids:
            return event
        assert member.fault is not None, f"no token came for {member.request_id}"
        return member.fault
    token_id, logprobs = output.token_ids[row], output.logprobs[row]
    reason = member.append(token_id)
    return member.fault or _event(member, (token_id,), () if logprobs is None else (logprobs,), reason)


def take_several(member: Generation, output: SampleOutput, row: int, num_drafts: int) -> tuple[TokenEvent, int, int]:
    """Append what `row` and those of the guesses behind it sampled, up to the first that came out otherwise than it was
    guessed, whose own row then says what comes instead. Returns the news, how many guesses were right, and how many
    were looked at."""
    token_ids: list[int] = []
    scores: list[TokenLogprobs] = []
    reason: FinishReason | None = None
    num_right = num_checked = 0
    for index in range(num_drafts + 1):
        if index and _fault_of(output, row + index) is not None:
            break  # the next step computes this row as its first, and it fails there as it would have without guesses
        token_id, logprobs = output.token_ids[row + index], output.logprobs[row + index]
        is_right = index < num_drafts and token_id == int(member.tokens[member.num_tokens])  # which it overwrites
        reason = member.append(token_id)
        if member.fault is not None:
            break  # the next step tells it, as it would have without guesses
        token_ids.append(token_id)
        if logprobs is not None:
            scores.append(logprobs)
        num_checked += index < num_drafts
        num_right += is_right
        if reason is not None or not is_right:
            break
    return _event(member, tuple(token_ids), tuple(scores), reason), num_right, num_checked


def _fault_of(output: SampleOutput, row: int) -> ErrorInfo | None:
    """Why a row gave no token, if it did not."""
    if row in output.failed:
        return _NOT_NUMBERS
    return _NO_TOKEN_LEFT if row in output.stuck else None


def _event(
    member: Generation, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...], reason: FinishReason | None
) -> TokenEvent:
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    if member.prompt_logprobs:
        prompt_logprobs, member.prompt_logprobs = tuple(member.prompt_logprobs), []
    return TokenEvent(
        member.request_id,
        token_ids,
        logprobs,
        reason,
        token_ids[-1] if reason == "stop" and token_ids[-1] in member.stop_ids else None,
        None,
        member.num_prompt,
        max(member.num_cached, 0),
        prompt_logprobs,
    )
