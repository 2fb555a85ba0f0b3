"""The fields that both generating endpoints share: how tokens are chosen, when to stop, how to answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from aie_engine import SamplingParams
from aie_server.api.fields import Fields
from aie_server.api.token_wishes import (
    as_tokens,
    check_some_left,
    parse_allowed_tokens,
    parse_bad_words,
    parse_logit_bias,
)
from aie_server.config import ServerConfig
from aie_server.served import ServedModel
from aie_server.text_output import OutputOptions

__all__ = ["StreamOptions", "parse_max_tokens", "parse_output_options", "parse_sampling", "parse_stream_options"]

_MAX_TOKENS: Final = 1 << 24  # far above any context; the context check names the real limit
_TOP_K_MAX: Final = 1 << 20
_MAX_REPETITION_PENALTY: Final = 100.0


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Whether to stream, and whether usage comes with it."""

    stream: bool = False
    include_usage: bool = False  # one more chunk at the end
    continuous_usage: bool = False  # vLLM's: usage in every chunk


def parse_sampling(
    fields: Fields, config: ServerConfig, model: ServedModel, *, logprobs: int | None, scores_prompt: bool = False
) -> Callable[[int], SamplingParams]:
    """All of it but `max_tokens`, which is known only when the prompt has been counted: a function of it. It also turns
    bad words into tokens, and so is for those who have been admitted.

    scores_prompt: the prompt's tokens get log-probabilities, where the answer's do.
    """
    info = model.engine.info
    vocab_size = info.vocab_size
    top_k = fields.integer("top_k", low=-1, high=_TOP_K_MAX)
    words = parse_bad_words(fields, config)
    prompt_logprobs = fields.integer("prompt_logprobs", low=0, high=config.max_top_logprobs)
    if prompt_logprobs is not None and fields.get("stream") is True:
        raise fields.error("prompt_logprobs", "left out of a streamed answer; with echo, logprobs are streamed")
    if scores_prompt and logprobs is not None:
        prompt_logprobs = max(logprobs, prompt_logprobs or 0)
    sampling = SamplingParams(
        temperature=fields.number("temperature", 1.0, low=0, high=2),
        top_k=max(0, top_k or 0),  # vLLM's −1 means what our 0 means
        top_p=fields.number("top_p", 1.0, low=0, high=1, low_excluded=True),
        min_p=fields.number("min_p", 0.0, low=0, high=1),
        seed=fields.integer("seed", low=-(2**63), high=2**63 - 1),
        stop_token_ids=fields.token_ids("stop_token_ids", vocab_size=vocab_size, max_length=config.max_stop_token_ids)
        or (),
        ignore_eos=fields.flag("ignore_eos", False),
        logprobs=logprobs,
        typical_p=fields.number("typical_p", 1.0, low=0, high=1, low_excluded=True),
        repetition_penalty=fields.number(
            "repetition_penalty", 1.0, low=0, high=_MAX_REPETITION_PENALTY, low_excluded=True
        ),
        frequency_penalty=fields.number("frequency_penalty", 0.0, low=-2, high=2),
        presence_penalty=fields.number("presence_penalty", 0.0, low=-2, high=2),
        logit_bias=parse_logit_bias(fields, config, vocab_size=vocab_size),
        allowed_token_ids=parse_allowed_tokens(fields, vocab_size=vocab_size),
        min_tokens=fields.integer("min_tokens", low=0, high=_MAX_TOKENS) or 0,
        prompt_logprobs=prompt_logprobs,
    )

    def complete(max_tokens: int) -> SamplingParams:
        bad_words = as_tokens(fields, words, model.text.tokenizer, vocab_size=vocab_size)
        whole = msgspec.structs.replace(sampling, max_tokens=max_tokens, bad_words=bad_words)
        check_some_left(fields, whole, info.eos_token_ids)
        return whole.validated()

    return complete


def parse_max_tokens(fields: Fields, *, low: int = 1) -> int | None:
    """`max_completion_tokens` is OpenAI's newer name; if both are given, it wins."""
    old = fields.integer("max_tokens", low=low, high=_MAX_TOKENS)
    new = fields.integer("max_completion_tokens", low=low, high=_MAX_TOKENS)
    return old if new is None else new


def parse_output_options(
    fields: Fields, config: ServerConfig, *, with_logprobs: bool, echo: bool = False, without_answer: bool = False
) -> OutputOptions:
    """Stop strings, and what of the tokens becomes text."""
    return OutputOptions(
        stop=fields.strings("stop", max_length=config.max_stop_strings, max_chars=config.max_stop_chars),
        include_stop=fields.flag("include_stop_str_in_output", False),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        with_logprobs=with_logprobs,
        echo=echo,
        without_answer=without_answer,
        min_tokens=fields.integer("min_tokens", low=0, high=_MAX_TOKENS) or 0,
        with_token_ids=fields.flag("return_token_ids", False),
    )


def parse_stream_options(fields: Fields) -> StreamOptions:
    """`stream`, and `stream_options`, which OpenAI allows only beside it."""
    stream = fields.flag("stream", False)
    options = fields.object("stream_options")
    if options is None:
        return StreamOptions(stream)
    if not stream:
        raise fields.error("stream_options", "left out unless stream is true")
    include = options.flag("include_usage", False)
    return StreamOptions(stream, include, options.flag("continuous_usage_stats", False) and include)
