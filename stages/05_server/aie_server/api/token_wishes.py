"""Fields that name tokens: `logit_bias`, `bad_words`, `allowed_token_ids`.

A token that the model has not is refused here, by the name of the field, and so is what would leave no token at all.
"""

from collections.abc import Collection, Iterable
from typing import Final

from aie_engine import SamplingParams
from aie_server.api.fields import Fields
from aie_server.config import ServerConfig
from aie_server.served import Tokenizer

__all__ = ["as_tokens", "check_some_left", "parse_allowed_tokens", "parse_bad_words", "parse_logit_bias"]

_MAX_BIAS: Final = 100.0  # as in OpenAI's API: enough to forbid a token, or to force it


def parse_logit_bias(fields: Fields, config: ServerConfig, *, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """`{"token id": number}`, as JSON has it."""
    given = fields.object("logit_bias")
    if given is None:
        return ()
    keys = given.names()
    if len(keys) > config.max_logit_bias:
        raise fields.error("logit_bias", f"an object of at most {config.max_logit_bias} tokens, not {len(keys)}")
    for key in keys:
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < vocab_size and given.has(key)):
            raise fields.error("logit_bias", f"an object of token ids, each from 0 to {vocab_size - 1}, with a number")
    return tuple((int(key), given.number(key, 0.0, low=-_MAX_BIAS, high=_MAX_BIAS)) for key in keys)


def parse_bad_words(fields: Fields, config: ServerConfig) -> tuple[str, ...]:
    """Words that the answer must not contain."""
    value = fields.get("bad_words")
    if value is not None and not isinstance(value, list):
        raise fields.error("bad_words", "a list of strings")
    return fields.strings("bad_words", max_length=config.max_bad_words, max_chars=config.max_stop_chars)


def as_tokens(
    fields: Fields, words: Iterable[str], tokenizer: Tokenizer, *, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Bad words as sequences of tokens, each at the beginning of a text and, where that is another token, behind a
    space: as vLLM has it."""
    found: list[tuple[int, ...]] = []
    for word in words:
        bare = word.lstrip(" ") or word
        plain = tuple(tokenizer.encode(bare, add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + bare, add_special_tokens=False))
        found.append(plain)
        if len(spaced) == len(plain) and spaced[:1] != plain[:1]:
            found.append(spaced)
    if not all(sequence and max(sequence) < vocab_size for sequence in found):
        raise fields.error("bad_words", "a list of strings made of tokens that the model has")
    return tuple(found)


def parse_allowed_tokens(fields: Fields, *, vocab_size: int) -> tuple[int, ...] | None:
    allowed = fields.token_ids("allowed_token_ids", vocab_size=vocab_size, max_length=vocab_size)
    if allowed == ():
        raise fields.error("allowed_token_ids", "a list of at least one token id")
    return allowed


def check_some_left(fields: Fields, sampling: SamplingParams, eos_token_ids: Collection[int]) -> None:
    """Raises `InvalidInputError` where other fields forbid all of `allowed_token_ids`, or all that come before
    min_tokens."""
    if sampling.allowed_token_ids is None:
        return
    left = set(sampling.allowed_token_ids) - {word[0] for word in sampling.bad_words if len(word) == 1}
    if not left:
        raise fields.error("allowed_token_ids", "a list with a token that bad_words does not forbid")
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
    if sampling.min_tokens and left <= ends:
        raise fields.error("allowed_token_ids", "a list with a token that does not end the answer, for min_tokens")
