"""From token events to text: decode, look for stop strings, keep log-probabilities in step with the text.

All of it is per choice and per token, so the order is: nothing that is not asked for is computed.
"""

from collections import deque
from collections.abc import Sequence
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
    echo: bool = False  # the prompt is the beginning of the text
    without_answer: bool = False  # and all of it
    min_tokens: int = 0  # stop strings count only in what comes after so many
    with_token_ids: bool = False


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token's log-probability and where its text begins in the choice's text, in characters."""

    scores: TokenLogprobs
    offset: int
    has_chance: bool = True  # False for the first token of a prompt, which nothing precedes


@dataclass(slots=True)
class Delta:
    """What is new for the client. `finish_reason` is "stop" or "length", on the last delta only."""

    text: str
    finish_reason: str | None = None
    scored: list[ScoredToken] = field(default_factory=list)
    token_ids: tuple[int, ...] = ()  # where they are wanted: all that came, whether they have become text or not


class TextOutput:
    """The text of one choice. `num_tokens` counts the answer's tokens, whether they became text or not, up to the
    one that completed a stop string; `prompt_scores` is what the engine said of the prompt's tokens, from the second
    on."""

    def __init__(self, tokenizer: Tokenizer, options: OutputOptions, prompt_ids: Sequence[int] = ()) -> None:
        self._decoder = tokenizer.incremental(skip_special_tokens=options.skip_special_tokens)
        self._matcher = StopStringMatcher(options.stop, include=options.include_stop) if options.stop else None
        self._options = options
        self._with_logprobs = options.with_logprobs
        self._echo = tuple(prompt_ids) if options.echo else ()  # not yet given out
        self._waiting: deque[ScoredToken] = deque()  # tokens whose text is held back
        self._num_decoded = 0  # characters that came out of the decoder
        self._num_released = 0  # characters that went to the client
        self.num_tokens = 0
        self.prompt_scores: list[TokenLogprobs] = []

    def push(self, event: TokenEvent) -> Delta:
        """`event` ends with "stop", "length" or not at all; how errors end is not a matter of text."""
        num_before, end = self.num_tokens, _num_before_end(event)
        self.prompt_scores += event.prompt_logprobs
        text = ""
        if self._echo and (event.token_ids or event.finish_reason):
            text = self._decode_prompt()
        finish_reason, num_new = event.finish_reason, len(event.token_ids)
        if self._options.without_answer:
            end = 0
        if self._matcher is not None:  # no stop string begins before min_tokens
            begin = min(end, max(0, self._options.min_tokens - num_before))
            text += self._decode(event, 0, begin)
            certain, num_new = self._match(event, begin, end)
            text += certain
            if self._matcher.matched is not None:
                finish_reason = "stop"
        else:
            text += self._decode(event, 0, end)
            if finish_reason is not None:
                text += self._decoder.finish()
        if self._options.without_answer:
            num_new = 0
        self.num_tokens += num_new
        self._num_released += len(text)
        token_ids = event.token_ids[:num_new] if self._options.with_token_ids else ()
        return Delta(text, finish_reason, self._scored(finish_reason) if self._with_logprobs else [], token_ids)

    def _match(self, event: TokenEvent, begin: int, end: int) -> tuple[str, int]:
        """What of the tokens' text is certain, and how many of the event's tokens belong to the answer: up to the one
        that completes a stop string. How many the engine has computed behind it is a matter of chance."""
        assert self._matcher is not None
        text = ""
        for index in range(begin, end):
            text += self._matcher.push(self._decode(event, index, index + 1))
            if self._matcher.matched is not None:
                return text, index + 1
        if event.finish_reason is not None:
            text += self._matcher.push(self._decoder.finish())
            if self._matcher.matched is None:
                text += self._matcher.finish()
        return text, len(event.token_ids)

    def _decode_prompt(self) -> str:
        """The prompt's text, as the first part of the answer's."""
        ids, self._echo = self._echo, ()
        if not self._with_logprobs:
            return self._decoder.push(ids)
        assert len(self.prompt_scores) == len(ids) - 1, f"{len(self.prompt_scores)} scores for {len(ids)} tokens"
        first = self._decode_scored(TokenLogprobs(ids[0], 0.0), has_chance=False)
        return first + "".join(self._decode_scored(scores) for scores in self.prompt_scores)

    def _decode(self, event: TokenEvent, begin: int, end: int) -> str:
        """Text of some of the event's tokens: with log-probabilities one at a time, to learn where each begins."""
        if self._with_logprobs:
            return "".join([self._decode_scored(scores) for scores in event.logprobs[begin:end]])
        return self._decoder.push(event.token_ids[begin:end])

    def _decode_scored(self, scores: TokenLogprobs, *, has_chance: bool = True) -> str:
        self._waiting.append(ScoredToken(scores, self._num_decoded, has_chance))
        text = self._decoder.push((scores.token_id,))
        self._num_decoded += len(text)
        return text

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
