"""From token events to text: decode, look for stop strings, keep log-probabilities in step with the text.

All of it is per choice and per token, so the order is: nothing that is not asked for is computed.
"""

from collections import deque
from dataclasses import dataclass, field

from aie_engine import TokenEvent, TokenLogprobs
from aie_server.served import Tokenizer
from aie_server.stopping import StopStringMatcher

__all__ = ["Delta", "OutputOptions", "ScoredToken", "TextOutput"]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a client wants its tokens turned into text."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False  # the stop string is part of the text
    skip_special_tokens: bool = True
    with_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token's log-probability and where its text begins in the choice's text, in characters."""

    scores: TokenLogprobs
    offset: int


@dataclass(slots=True)
class Delta:
    """What is new for the client. `finish_reason` is "stop" or "length", on the last delta only."""

    text: str
    finish_reason: str | None = None
    scored: list[ScoredToken] = field(default_factory=list)


class TextOutput:
    """The text of one choice. `num_tokens` counts what the model computed, whether it became text or not."""

    def __init__(self, tokenizer: Tokenizer, options: OutputOptions) -> None:
        self._decoder = tokenizer.incremental(skip_special_tokens=options.skip_special_tokens)
        self._matcher = StopStringMatcher(options.stop, include=options.include_stop) if options.stop else None
        self._with_logprobs = options.with_logprobs
        self._waiting: deque[ScoredToken] = deque()  # tokens whose text is held back
        self._num_decoded = 0  # characters that came out of the decoder
        self._num_released = 0  # characters that went to the client
        self.num_tokens = 0

    def push(self, event: TokenEvent) -> Delta:
        """`event` ends with "stop", "length" or not at all; how errors end is not a matter of text."""
        self.num_tokens += len(event.token_ids)
        text = self._decode_scored(event) if self._with_logprobs else self._decode(event)
        finish_reason: str | None = event.finish_reason
        if finish_reason is not None:
            text += self._decoder.finish()
        if self._matcher is not None:
            text = self._matcher.push(text)
            if self._matcher.matched is not None:
                finish_reason = "stop"
            elif finish_reason is not None:
                text += self._matcher.finish()
        self._num_released += len(text)
        return Delta(text, finish_reason, self._scored(finish_reason) if self._with_logprobs else [])

    def _decode(self, event: TokenEvent) -> str:
        return self._decoder.push(event.token_ids[: _num_before_end(event)])

    def _decode_scored(self, event: TokenEvent) -> str:
        """One token at a time, to learn where the text of each begins."""
        pieces: list[str] = []
        for scores in event.logprobs[: _num_before_end(event)]:
            self._waiting.append(ScoredToken(scores, self._num_decoded))
            pieces.append(self._decoder.push((scores.token_id,)))
            self._num_decoded += len(pieces[-1])
        return "".join(pieces)

    def _scored(self, finish_reason: str | None) -> list[ScoredToken]:
        """Tokens whose text the client has got by now. After a stop string, those that lay in it are dropped."""
        is_cut = self._matcher is not None and self._matcher.matched is not None
        if finish_reason is not None and not is_cut:
            num_ready = len(self._waiting)
        else:
            num_ready = sum(1 for token in self._waiting if token.offset < self._num_released)
        return [self._waiting.popleft() for _ in range(num_ready)]


def _num_before_end(event: TokenEvent) -> int:
    """How many of the event's tokens come before the one that ended the generation."""
    tokens = event.token_ids
    ends = event.stop_token_id is not None and bool(tokens) and tokens[-1] == event.stop_token_id
    return len(tokens) - 1 if ends else len(tokens)
